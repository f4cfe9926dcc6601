package fulfillment_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// TestTheMessageAboutAnOutcomeGoesOnWithTheTrace: of what the message before it
// brought, its trace and its correlation go along, and nothing else.
func TestTheMessageAboutAnOutcomeGoesOnWithTheTrace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		brought, want map[string]string
	}{
		"a trace": {
			map[string]string{"correlation_id": "req_1", "traceparent": "t1", "tracestate": "private", "baggage": "private"},
			map[string]string{"correlation_id": "req_1", "traceparent": "t1"},
		},
		"none": {
			map[string]string{"correlation_id": "req_1"},
			map[string]string{"correlation_id": "req_1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			s := w.accept("ch_1", order())
			w.exec(`update inbox set metadata = $1`, test.brought)
			if err := w.deliver(); err != nil {
				t.Fatal(err)
			}
			rows, err := w.db.Query(t.Context(), `select metadata from outbox`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[map[string]string])
			if err != nil {
				t.Fatal(err)
			}
			test.want["causation_id"], test.want["ordering_key"], test.want["type"], test.want["partition_key"] = s.Head().ID.String(), "ch_1", "charge.succeeded.v1", "acme"
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
}
