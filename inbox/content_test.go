package inbox_test

import (
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// TestAccept_countsAMessageThatIsNamedByItsContent: in whatever spelling it comes, it
// is one message, and none of its deliveries is quarantined.
func TestAccept_countsAMessageThatIsNamedByItsContent(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	accept := func(id string, payload []byte) inbox.Reception {
		return acceptFor(t, db, "shop", inbox.Message{ID: id, Type: "order", Payload: payload})
	}
	for i, spelling := range []string{
		`{"order_id":"o-1","amount":100}`,
		`{ "amount": 1e2, "order_id": "o-1" }`,
		`{"order_id":"o\u002d1","amount":100.0}`,
	} {
		id, payload, err := idempotency.Content("shop", []byte(spelling))
		must(t, err)
		want := inbox.Reception{Duplicates: 1}
		if i == 0 {
			want = inbox.Reception{New: 1}
		}
		if got := accept(id, payload); got != want {
			t.Errorf("%s is received as %+v, want %+v", spelling, got, want)
		}
	}
	// The id of a sender says nothing of the payload, so its bytes are compared.
	accept("m1", []byte(`{"order_id":"o-1","amount":100}`))
	if got := accept("m1", []byte(`{"amount":100,"order_id":"o-1"}`)); got.Aside != 1 {
		t.Errorf("other bytes under a sender's id are received as %+v, want them aside", got)
	}
}
