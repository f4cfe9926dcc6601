// Package groupcommit lets writes that are decided at the same moment share one commit,
// so that the flush of the log is paid once for all of them. It needs pgx and nothing
// else.
//
// A Batcher queues calls while others are under way, and lets the first in the queue
// carry out everything that is queued. A Statement declares a write that may share a
// transaction, its form for several rows, and what it locks. An Order is the list of all
// of them, in the order in which their locks are taken; its Join makes one batch of
// several.
package groupcommit
