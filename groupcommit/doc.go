// Package groupcommit commits pgx batches, says what became of each commit, and lets batches that arrive at
// the same moment share one transaction, and so one flush of the WAL. It needs pgx and the standard library.
// OutcomeOf says what a caller may do next, and the example of Committer shows how.
//
// # Guarantees
//
//   - A batch is atomic, individually or in a group.
//   - A caller gets nil only after the server has confirmed the COMMIT.
//   - Only a batch's own commit refuses it: after a group that is refused, each of its batches commits
//     individually.
//   - A lost answer is ErrUnknown for each batch of the group, and none is repeated.
//   - Rows that are changed are locked by table and key in one order, so groups do not deadlock over them. A
//     group waits for a lock, also of a key that another one inserts, no longer than Options.LockTimeout. Then
//     its batches commit individually.
//   - At most half of the pool's connections are in commits, at least one, so reads go on while commits hang,
//     as for a synchronous standby that is away. A commit keeps its slot until the server answers.
//   - There is no batching delay: a batch that comes while no commit is in flight is sent at once. A group
//     waits for the one in flight, but no longer than 50 ms if a slot is free. It has at most 64 batches and
//     500 statements.
//
// # Limits
//
// Batches share only where they consist of statements that were declared, have no callback, and need no
// setting of their own. A statement that reads what another batch of its group writes may see it. A group is
// as slow as its slowest statement.
//
// Batcher is the queue behind it, for any other calls that may be batched, such as reads.
package groupcommit
