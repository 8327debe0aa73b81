/* The texts of the SQLite store's statements. */
#include "base/assert.h"
#include "storage/store_sqlite.h"

#define HISTORY_PAGE(compare_order)                                                                                    \
    "SELECT epoch,step,sequence," STORE_ROW_COLUMNS " FROM steps WHERE model_id=?1"                                    \
    " AND (epoch,step,sequence)>=(?2,?3,?4) AND (epoch,step,sequence)<=(?5,?6,?7)"                                     \
    " AND step>=?8 AND step<=?9 AND (?10 OR superseded=0)"                                                             \
    " AND (?11=0 OR (kind=1 AND (?11>>verdict)&1)) AND (NOT ?12 OR scale<>after_scale)"                                \
    " ORDER BY epoch " compare_order ",step " compare_order ",sequence " compare_order " LIMIT ?13"

/* Only the row of a step (sequence 0) has overflow rows. */
#define OVERFLOWS_PAGE(compare_order)                                                                                  \
    "SELECT o.epoch,o.step,o.position,parameter,rank,inf_count,nan_count,first_index,largest,at_us,superseded"         \
    " FROM overflows o JOIN steps s ON s.model_id=o.model_id AND s.epoch=o.epoch AND s.step=o.step"                    \
    " AND s.sequence=0 WHERE o.model_id=?1"                                                                            \
    " AND (o.epoch,o.step,o.position)>=(?2,?3,?4) AND (o.epoch,o.step,o.position)<=(?5,?6,?7)"                         \
    " AND o.step>=?8 AND o.step<=?9 AND (?10 OR s.superseded=0)"                                                       \
    " AND parameter>=?11 AND parameter<=?12 AND rank>=?13 AND rank<=?14"                                               \
    " ORDER BY o.epoch " compare_order ",o.step " compare_order ",o.position " compare_order " LIMIT ?15"

static const char *const statement_texts[STMT_COUNT] = {
    [STMT_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [STMT_BEGIN_READ] = "BEGIN",
    [STMT_COMMIT] = "COMMIT",
    [STMT_ROLLBACK] = "ROLLBACK",
    [STMT_FENCE_GET] = "SELECT counter,boot_id FROM fences WHERE shard=?1",
    [STMT_FENCE_PUT] = "INSERT INTO fences(shard,counter,boot_id) VALUES(?1,?2,?3)"
                       " ON CONFLICT(shard) DO UPDATE SET counter=?2,boot_id=?3",
    [STMT_MODEL_FIND] = "SELECT id,(SELECT max(epoch) FROM epochs WHERE model_id=id) FROM models WHERE name=?1",
    [STMT_MODEL_PUT] = "INSERT INTO models(name,spec,created_us) VALUES(?1,?2,?3)",
    [STMT_PARAMETER_PUT] = "INSERT INTO parameters(model_id,position,name,shape,group_index) VALUES(?1,?2,?3,?4,?5)",
    [STMT_EPOCH_PUT] = "INSERT INTO epochs(model_id,epoch,parent,base_epoch,base_step,reason,at_us)"
                       " VALUES(?1,?2,?3,?4,?5,?6,?7)",
    [STMT_ROWS_SUPERSEDE] = "UPDATE steps SET superseded=1 WHERE model_id=?1 AND epoch<?2 AND superseded=0"
                            " AND (step,sequence)>(?3,0)",
    [STMT_CHECKPOINTS_VOID] = "UPDATE checkpoints SET void=1 WHERE model_id=?1 AND (step>?2 OR ?3=0) AND void=0",
    [STMT_ROW_PUT] = "INSERT INTO steps(model_id,epoch,step,sequence," STORE_ROW_COLUMNS ")"
                     " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [STMT_ROW_EXISTS] = "SELECT 1 FROM steps WHERE model_id=?1 AND epoch=?2 AND step=?3 AND sequence=0",
    [STMT_ROW_LAST_SEQUENCE] = "SELECT max(sequence) FROM steps WHERE model_id=?1 AND epoch=?2 AND step=?3",
    [STMT_ACT_EXISTS] = "SELECT 1 FROM steps WHERE model_id=?1 AND epoch=?2 AND step=?3 AND sequence>0"
                        " AND after_scale_id=?4",
    [STMT_OVERFLOW_PUT] = "INSERT INTO overflows(model_id,epoch,step,position,parameter,rank,inf_count,nan_count,"
                          "first_index,largest) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
    [STMT_WORKER_DROP_NAME] = "DELETE FROM workers WHERE model_id=?1 AND name=?2 AND rank<>?3",
    [STMT_WORKER_PUT] = "INSERT INTO workers(model_id,rank,name,fence,counter,has_left) VALUES(?1,?2,?3,?4,?5,?6)"
                        " ON CONFLICT(model_id,rank) DO UPDATE SET name=?3,fence=?4,counter=?5,has_left=?6",
    [STMT_CHECKPOINT_PUT] = "INSERT OR REPLACE INTO checkpoints(model_id,epoch,step,version,file,size_bytes,"
                            "manifest,at_us,scale,parts,void) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,0)",
    [STMT_CHECKPOINT_PARTS] = "UPDATE checkpoints SET parts=?4 WHERE model_id=?1 AND epoch=?2 AND step=?3 AND void=0",
    [STMT_CHECKPOINT_DROP] = "DELETE FROM checkpoints WHERE model_id=?1 AND epoch=?2 AND step=?3",
    [STMT_MODELS_LIST] = "SELECT id,name,spec,created_us,deletion FROM models WHERE deletion<2 ORDER BY name",
    [STMT_PARAMETERS_LIST] = "SELECT name,shape,group_index FROM parameters WHERE model_id=?1 ORDER BY position",
    [STMT_EPOCH_LAST] = "SELECT epoch,base_epoch,base_step FROM epochs WHERE model_id=?1 ORDER BY epoch DESC"
                        " LIMIT 1",
    [STMT_EPOCH_GET] = "SELECT parent,base_epoch,base_step,reason,at_us FROM epochs WHERE model_id=?1 AND epoch=?2",
    [STMT_ROW_LAST] = "SELECT epoch,step,sequence," STORE_ROW_COLUMNS
                      " FROM steps WHERE model_id=?1 ORDER BY epoch DESC,step DESC,sequence DESC LIMIT 1",
    [STMT_OVERFLOWS_OF_ROW] = "SELECT parameter,rank,inf_count,nan_count,first_index,largest FROM overflows"
                              " WHERE model_id=?1 AND epoch=?2 AND step=?3 ORDER BY position",
    [STMT_WORKERS_LIST] = "SELECT rank,name,fence,counter,has_left FROM workers WHERE model_id=?1 ORDER BY rank",
    [STMT_CHECKPOINTS_LIST] = "SELECT epoch,step,version,file,size_bytes,manifest,at_us,scale,parts FROM checkpoints"
                              " WHERE model_id=?1 AND void=0 ORDER BY epoch,step",
    [STMT_HISTORY_UP] = HISTORY_PAGE("ASC"),
    [STMT_HISTORY_DOWN] = HISTORY_PAGE("DESC"),
    [STMT_OVERFLOWS_UP] = OVERFLOWS_PAGE("ASC"),
    [STMT_OVERFLOWS_DOWN] = OVERFLOWS_PAGE("DESC"),
    [STMT_ACTS_LIST] =
        "SELECT kind,s.epoch,step,from_step,(SELECT base_epoch FROM epochs e WHERE e.model_id=?1 AND e.epoch=s.epoch),"
        "after_scale,after_scale_id,growth_tracker,hysteresis_left,consecutive_overflows,total_overflows,"
        "steps_since_overflow,attempted,applied,skipped,superseded,request_id FROM steps s"
        " WHERE model_id=?1 AND request_id<>'' ORDER BY s.epoch DESC,step DESC,sequence DESC LIMIT ?2",
    [STMT_MODEL_DELETING] = "UPDATE models SET deletion=1 WHERE name=?1",
    /* '/' is in no name of a model: its name is free again, and nobody finds it. */
    [STMT_MODEL_DELETED] = "UPDATE models SET deletion=2,name=name||'/'||id WHERE name=?1",
    [STMT_DELETED_FIND] = "SELECT id FROM models WHERE deletion=2 LIMIT 1",
    [STMT_DELETED_LIST] = "SELECT substr(name,1,instr(name,'/')-1) FROM models WHERE deletion=2 ORDER BY id",
    [STMT_PURGE_OVERFLOWS] = "DELETE FROM overflows WHERE model_id=?1 AND (epoch,step,position) IN"
                             " (SELECT epoch,step,position FROM overflows WHERE model_id=?1 LIMIT ?2)",
    [STMT_PURGE_STEPS] = "DELETE FROM steps WHERE model_id=?1 AND (epoch,step,sequence) IN"
                         " (SELECT epoch,step,sequence FROM steps WHERE model_id=?1 LIMIT ?2)",
    [STMT_PURGE_PARAMETERS] = "DELETE FROM parameters WHERE model_id=?1",
    [STMT_PURGE_EPOCHS] = "DELETE FROM epochs WHERE model_id=?1",
    [STMT_PURGE_WORKERS] = "DELETE FROM workers WHERE model_id=?1",
    [STMT_PURGE_CHECKPOINTS] = "DELETE FROM checkpoints WHERE model_id=?1",
    [STMT_PURGE_MODEL] = "DELETE FROM models WHERE id=?1",
};

const char *store_sql(enum store_statement statement)
{
    AMP_ASSERT(statement < STMT_COUNT && statement_texts[statement] != NULL);
    return statement_texts[statement];
}
