/* An intrusive doubly linked ring: the node is embedded in its owner, so that linking never allocates. */
#ifndef AMP_BASE_LIST_H
#define AMP_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A head (empty: points to itself) or a node (linked into exactly one ring, or to itself). */
struct amp_list {
    struct amp_list *next;
    struct amp_list *prev;
};

/* The owner of a node. */
#define AMP_CONTAINER(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* Visits each node; `safe` lets the body unlink the node it is at. */
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

/* Links node at the end of the ring; it must not be linked elsewhere. */
static inline void amp_list_push(struct amp_list *head, struct amp_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Unlinks node; unlinking an unlinked node has no effect. */
static inline void amp_list_remove(struct amp_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    amp_list_init(node);
}

/* Unlinks and returns the first node, or NULL. */
static inline struct amp_list *amp_list_shift(struct amp_list *head)
{
    if (amp_list_empty(head))
        return NULL;
    struct amp_list *node = head->next;
    amp_list_remove(node);
    return node;
}

#endif
