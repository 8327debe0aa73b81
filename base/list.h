/* An intrusive doubly linked ring: the node is embedded in its owner, so that linking never allocates. */
#ifndef AMP_BASE_LIST_H
#define AMP_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* The head of a ring, which points to itself if the ring is empty, or a node: in exactly one ring, or in none. */
struct amp_list {
    struct amp_list *next;
    struct amp_list *prev;
};

/* The struct of `type` that has the node as its `member`. */
#define AMP_CONTAINER(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* A loop over all nodes of a ring. The body may unlink the node `it`, but not the one after it, which is `safe`. */
#define AMP_LIST_EACH(it, safe, head)                                                                        \
    for (struct amp_list *it = (head)->next, *safe = it->next; it != (head); it = safe, safe = it->next)

static inline void amp_list_init(struct amp_list *node)
{
    node->next = node;
    node->prev = node;
}

static inline bool amp_list_empty(const struct amp_list *head)
{
    return head->next == head;
}

/* Links a node at the end of a ring. The node must not be in a ring. */
static inline void amp_list_push(struct amp_list *head, struct amp_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Takes a node out of its ring; does nothing if it is in none. The node must have been initialised. */
static inline void amp_list_remove(struct amp_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    amp_list_init(node);
}

/* Takes the first node out of a ring and returns it. NULL: the ring is empty. */
static inline struct amp_list *amp_list_shift(struct amp_list *head)
{
    if (amp_list_empty(head))
        return NULL;
    struct amp_list *node = head->next;
    amp_list_remove(node);
    return node;
}

#endif
