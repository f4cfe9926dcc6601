package ledger_test

import (
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestDisputesWithheld: the view sums the movements of the disputes that are open.
func TestDisputesWithheld(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	opened := func(id string) domain.Event {
		return domain.DisputeOpened{DisputeID: id, Provider: domain.Provider, Amount: 1000}
	}
	moved := func(id, transaction string, amount int64) domain.DisputeMoved {
		return domain.DisputeMoved{DisputeID: id, Transaction: transaction, Amount: amount, Fee: 15}
	}
	appended(t, db, ledger.New("ch_1"), cause("a"), append(paid("acme", "pi_1"),
		opened("du_open"), domain.DisputeWithdrawn{DisputeMoved: moved("du_open", "txn_1", 1000)}, domain.DisputeReinstated{DisputeMoved: moved("du_open", "txn_2", 10)},
		opened("du_lost"), domain.DisputeWithdrawn{DisputeMoved: moved("du_lost", "txn_3", 500)}, domain.DisputeClosed{DisputeID: "du_lost", Status: "lost"},
		opened("du_inquiry"),
		opened("du_goes_on"), domain.DisputeClosed{DisputeID: "du_goes_on", Status: "won"},
		domain.DisputeUpdated{DisputeID: "du_goes_on", Amount: 1000, Status: domain.DisputeOpen},
		domain.DisputeWithdrawn{DisputeMoved: moved("du_goes_on", "txn_4", 7)},
	)...)
	got := testdb.One[string](t, db, `
select string_agg(concat_ws(' ', charge_id, merchant_id, dispute_id, currency, withheld), ', ' order by dispute_id)
  from disputes_withheld`)
	if want := "ch_1 acme du_goes_on EUR 7, ch_1 acme du_inquiry EUR 0, ch_1 acme du_open EUR 990"; got != want {
		t.Errorf("withheld is %q, want %q", got, want)
	}
}
