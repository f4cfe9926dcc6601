package intake_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/ledger"
)

// TestMetadataGoesAlong: what a request brings goes along with its message, but
// takes nobody's place in it; and it is no part of the request, whose answer is
// the same without it.
func TestMetadataGoesAlong(t *testing.T) {
	t.Parallel()
	db, _ := migrated(t)
	in := keeping(t, db)
	r := request("key", "a")
	r.Metadata = map[string]string{
		"traceparent": "t1", "type": "forged", "ordering_key": "forged", "partition_key": "forged", "correlation_id": "forged", "causation_id": "forged",
	}
	first := accept(t, in, r)
	r.Metadata = map[string]string{"traceparent": "t2"}
	again := accept(t, in, r)
	r.Metadata = nil
	third := accept(t, in, r)
	for _, replay := range [][]byte{again.Body, third.Body} {
		if !bytes.Equal(first.Body, replay) {
			t.Errorf("answered %s and %s", first.Body, replay)
		}
	}
	if first.Replayed || !again.Replayed || !third.Replayed {
		t.Error("a request with other metadata is another request")
	}
	wantCharges(t, db, 1)
	rows, err := db.Query(t.Context(), `select metadata from outbox`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[map[string]string])
	if err != nil {
		t.Fatal(err)
	}
	id := first.Location[len("/v1/charges/"):]
	s, err := ledger.Load(t.Context(), db, id)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"traceparent": "t1", "type": "charge.requested.v1", "ordering_key": id, "correlation_id": "req_1",
		"partition_key": "acme", "causation_id": s.Head().ID.String(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
}
