// Package inbox is the idempotent receiver of messages: receive, claim,
// process, retry, park. It owns inbox and inbox_quarantine, and knows nothing of
// charges. Its twin for requests is package idempotency.
//
// It promises:
//
//   - a message is received once per receiver, however often it is delivered; the
//     same id with another payload is kept aside, never processed and never merged;
//   - messages of one ordering key are processed one at a time, oldest first, and
//     different keys side by side;
//   - a holder proves its lease when it finishes: Done rides in the handler's own
//     commit, and a holder whose lease was taken over loses that whole commit;
//   - a handler that fails, panics or dies is tried again, with exponential
//     backoff and full jitter by the database's clock, a bounded number of times;
//     a handler that waits for something outside is tried again for a bounded time;
//     what is beyond its bound is parked for a human and blocks its own key only.
//
// It does not promise that a handler runs once. It runs again after every crash,
// so a handler must look at what it has already done; that is what makes it
// resumable.
package inbox
