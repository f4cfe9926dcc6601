// Package defects holds tests alone. Three published descriptions of the
// idempotent receiver, which payonce follows in much, carry sample code with
// defects; docs/patterns.md names them D1 to D7. Each has a test of two parts:
//
//   - "the document" builds the sample's algorithm anew, in miniature and in our
//     own words, on a real PostgreSQL, and shows that the defect happens;
//   - "ours" brings payonce's own packages into the same situation and shows that
//     it does not.
//
// Nothing waits for time to pass: who overtakes whom is settled by channels, by
// locks, and by what PostgreSQL says about who is blocked. A process that dies
// is a goroutine that ends where it stands.
//
// The tests show that a defect can happen, not how often. They say nothing about
// the documents' advice, most of which payonce follows.
package defects
