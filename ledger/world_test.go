package ledger_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// opened is the first event of a charge of a merchant.
func opened(merchant string, amount int64, currency domain.Currency) domain.ChargeRequested {
	return domain.ChargeRequested{
		MerchantID: merchant, OrderID: "order 1", Amount: amount, Currency: currency, Fee: 30,
		PaymentMethod: "pm_card_visa", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}
}

// paid are the events of a charge of 1000 EUR without items that succeeds.
func paid(merchant, intent string) []domain.Event {
	return []domain.Event{
		opened(merchant, 1000, "EUR"),
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: intent, Amount: 1000, Currency: "EUR", Fee: 30},
		domain.ChargeSucceeded{},
	}
}

func attempt(status int) domain.Event {
	return domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: status}
}

func because(cause string) ledger.Cause {
	return ledger.Cause{CorrelationID: "req_1", CausationID: cause, Actor: "test"}
}

// appended commits events to a stream, one of which nobody else appends to.
func appended(t *testing.T, db *postgres.DB, s ledger.Stream, cause ledger.Cause, events ...domain.Event) ledger.Stream {
	t.Helper()
	s, err := try(t, db, s, cause, events...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func try(t *testing.T, db *postgres.DB, s ledger.Stream, cause ledger.Cause, events ...domain.Event) (ledger.Stream, error) {
	t.Helper()
	b := &pgx.Batch{}
	next, err := ledger.Append(b, s, cause, events...)
	if err != nil {
		t.Fatal(err)
	}
	return next, db.Commit(t.Context(), b)
}

// load loads the one stream of most tests.
func load(t *testing.T, q postgres.Querier) ledger.Stream {
	t.Helper()
	s, err := ledger.Load(t.Context(), q, "ch_1")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func collect[T any](t *testing.T, q postgres.Querier, sql string, args ...any) []T {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return values
}
