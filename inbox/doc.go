// Package inbox is the idempotent receiver of messages: receive, claim,
// process, retry, park, retain. It owns inbox and inbox_quarantine, and knows
// nothing of charges. Its twin for requests is package idempotency.
//
// It promises:
//
//   - a message is received once per receiver, however often it is delivered; the
//     same id with another payload is kept aside, never processed and never merged;
//   - messages of one ordering key are processed one at a time, oldest first, and
//     different keys side by side;
//   - what a page brings is handed to a processor of the same process that has room,
//     as if claimed; nothing of a page is handled before it is committed;
//   - a holder proves its lease when it finishes: Done rides in the handler's own
//     commit, and a holder whose lease was taken over loses that whole commit;
//   - a handler that fails or panics is tried again, with exponential backoff and
//     full jitter by the database's clock, a bounded number of times; one that
//     waits for something outside, or whose database is away, for a bounded time;
//   - a message that ends every process which takes it is told apart from those
//     that ran beside it, and tried a bounded number of times too;
//   - what is beyond its bound is parked: it blocks its own key, or lets it pass,
//     as the receiver's Policy says, and no other. An operator lists, retries or
//     discards it, under a name;
//   - what is done is kept until Sweep deletes it.
//
// It does not promise that a handler runs once. It runs again after every crash,
// so a handler must look at what it has already done; that is what makes it
// resumable. Nor does it restore the order in which messages were sent: the
// oldest is the one that was received first.
package inbox
