// Package defects holds tests and, for tests of other packages, Section, which keeps the generated
// pages of docs/reference equal to what the code says. Three published descriptions of the idempotent
// receiver, which payonce follows in much, carry sample code with defects;
// docs/explanation/patterns.md names them D1 to D15, and the tests of payonce for each. For D8
// to D15 a test builds the algorithm of a sample anew, in miniature and in our own words, on a
// real PostgreSQL, and fails unless the defect happens. It then runs payonce's packages in the
// same scenario.
//
// Nothing waits for time to pass: channels, locks and PostgreSQL's own report of who is
// blocked decide the order. A process that dies is a goroutine that ends where it stands.
//
// The tests show that a defect can happen, not how often. They say nothing about the
// documents' advice, most of which payonce follows. The tests of the documents are here
// too: what README.md and docs/ name exists. So are those of the image and of docker-compose.yml.
package defects
