// Package audit checks every promise of payonce against what is stored: the
// tables (Run), and the payment provider's lists (Reconcile). It owns no table,
// writes nothing and repairs nothing.
//
// It promises that Run makes each check in one snapshot, so traffic cannot make it
// fail, holds none for longer than a check or a page of streams, and takes no lock that
// traffic waits for. A check looks at everything
// that it should cover: it is over 0 cases only where there is nothing to cover.
// An open charge or refund is no violation; one that nobody is going to carry is.
//
// It does not promise to be quick: it reads whole tables, about 0.2 ms per
// charge, and each of its statements must end within the pool's statement
// time-out. And Run alone cannot tell whether the provider took the money.
package audit
