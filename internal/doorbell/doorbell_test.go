package doorbell_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// A commit rings for what it leaves to be done, and for nothing else.
func TestCommitted(t *testing.T) {
	t.Parallel()
	var rung outbox.Kind
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{
		Committed: func(b *pgx.Batch) { rung |= doorbell.Of(b) },
	})
	message := func(b *pgx.Batch) error {
		return outbox.Append(b, outbox.Message{Topic: "t", ID: "m1", Type: "t", Payload: []byte("x")})
	}
	event := func(b *pgx.Batch) error {
		_, err := ledger.Append(b, ledger.New("ch_1"), ledger.Cause{CorrelationID: "a", CausationID: "a", Actor: "a"}, domain.ChargeRequested{
			MerchantID: "acme", Amount: 1000, Currency: "EUR", Steps: domain.Steps(),
		})
		return err
	}
	for name, test := range map[string]struct {
		queue func(*pgx.Batch) error
		want  outbox.Kind
	}{
		"a message of the outbox": {message, doorbell.Outbox},
		"an event":                {event, doorbell.Ledger},
		"an accepted message": {
			func(b *pgx.Batch) error { inbox.Accept(b, "r", inbox.Message{ID: "m1"}); return nil }, doorbell.Inbox,
		},
		"another write": {
			func(b *pgx.Batch) error { b.Queue(`insert into merchants (merchant_id) values ('m')`); return nil }, 0,
		},
	} {
		b := &pgx.Batch{}
		testdb.Must(t, test.queue(b))
		testdb.Must(t, db.Commit(t.Context(), b))
		if rung != test.want {
			t.Errorf("%s rings for %b, want %b", name, rung, test.want)
		}
		rung = 0
	}
	refused := &pgx.Batch{}
	refused.Queue(`insert into merchants (merchant_id) values ('m')`)
	testdb.Must(t, message(refused))
	if err := db.Commit(t.Context(), refused); err == nil || rung != 0 {
		t.Errorf("a refused commit: %v", err)
	}
}
