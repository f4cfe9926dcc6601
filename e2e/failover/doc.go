// Package failover holds the tests that lose a primary: real PostgreSQL servers with
// streaming replication, the real programs, charges that are sent twice, and workers that
// are killed. The primary is killed, stops, is cut off the network, or goes on; the test
// promotes the standby. The programs know both servers by one URL and are never restarted
// for it.
//
// Each scenario prints one line:
//
//   - failovers: how many there were.
//   - lost: accepted charges that are missing or whose key is answered differently, where
//     replication is synchronous.
//   - doubled: charges that were captured twice, and orders with two charges.
//   - damaged: violations that the audit finds, but for captures whose charge was lost.
//   - gone: captures without a charge, which only asynchronous replication leaves. The audit
//     must name each of them.
//   - gap: the longest time without an accepted charge, for each failover.
//
// One scenario has three etcd and two servers that Patroni runs, and needs Debian's packages of
// both.
//
// With -failovers=20 every scenario is run, with so many failovers. Without it there is one
// failover in some of them.
//
// To keep the old primary from coming back is the work of what promotes, such as Patroni.
// The tests do it: a killed primary stays down; one that stands still or is cut off stays so
// until it is killed.
package failover
