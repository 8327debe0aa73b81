/* First values of a model out of a safetensors file: what `checkpoint import` and `create` share. */
#ifndef AMPCTL_IMPORT_H
#define AMPCTL_IMPORT_H

#include "client/ampclient.h"
#include "client/ampctl/ctl.h"
#include "client/ampctl/files/safetensors.h"

/* A file, mapped. */
struct ampctl_tensor_file {
    const char *path; /* borrowed */
    void *bytes;
    size_t size;
    struct ampctl_safetensors tensors;
};

/* 0, or an exit code after a sentence on stderr. In both cases the caller's to close. */
int ampctl_tensor_file_open(const struct ampctl *ctl, const char *path, struct ampctl_tensor_file *file);
void ampctl_tensor_file_close(struct ampctl_tensor_file *file);

/* Says on stderr what is wrong with the file. AMPCTL_EXIT_FAILED. */
int ampctl_tensor_file_failed(const struct ampctl *ctl, const struct ampctl_tensor_file *file, const char *text);

/* A client with the options of the command line; ampclient_close. 0, or an exit code after a sentence on stderr. */
int ampctl_client(const struct ampctl *ctl, struct ampclient **client);

/*
 * Loads each parameter of a model from the tensor of its name: *count of them. *already: it has values, and keeps them.
 * 0, or an exit code after a sentence on stderr.
 */
int ampctl_load_values(struct ampctl *ctl, const char model[128], const struct ampctl_tensor_file *file,
                       uint32_t *count, bool *already);

/* What a full import has brought. */
struct ampctl_imported {
    uint64_t step, applied, tensors;
    float scale;
};

/*
 * Loads all of a checkpoint's file: training goes on after its step. *already: the model has values, and keeps them.
 * 0, or an exit code after a sentence on stderr.
 */
int ampctl_import_full(struct ampctl *ctl, const char model[128], const char *path, struct ampctl_imported *made,
                       bool *already);

#endif
