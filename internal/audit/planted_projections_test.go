package audit_test

import (
	"fmt"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/ledger"
)

// project folds every committed event into the projections. It waits for other transactions
// of the server.
func (w *world) project() {
	w.Helper()
	const unfolded = `
select count(*)
  from ledger_events e
  join projections p
    on (e.txid, e.position) > (p.txid, p.position)
 where p.state = 'live'`
	await.Progress(w, "every event is folded", func() (string, bool) {
		var left int
		if _, err := ledger.Project(w.Context(), w.db); err != nil {
			w.Fatal(err)
		}
		if err := w.db.QueryRow(w.Context(), unfolded).Scan(&left); err != nil {
			w.Fatal(err)
		}
		return fmt.Sprintf("%d events are not folded", left), left == 0
	})
}

func plantedInProjections() map[string][]plant {
	return map[string][]plant{
		"the list shows each charge as its events tell": {
			{"a_charge_with_another_status", `update charge_list set status = 'failed' where charge_id = '{sold}'`, nil},
			{"a_charge_of_another_merchant", `update charge_list set merchant_id = 'globex' where charge_id = '{sold}'`, nil},
			{"a_charge_of_another_time", `update charge_list set created_at = created_at + interval '1 microsecond' where charge_id = '{sold}'`, nil},
			{"a_charge_at_another_version", `update charge_list set version = version - 1 where charge_id = '{sold}'`, nil},
			{"a_charge_shown_with_another_amount", `update charge_list set view = replace(view::text, '"amount":1000', '"amount":1001')::json where charge_id = '{sold}'`, nil},
			{"a_charge_shown_with_other_bytes", `update charge_list set view = (view::text || ' ')::json where charge_id = '{sold}'`, nil},
			{"a_charge_that_is_not_listed", `delete from charge_list where charge_id = '{fresh}'`, nil},
			{"a_checkpoint_beyond_what_was_folded", `
delete from charge_list where charge_id = '{fresh}';
delete from account_balances;
update projections set position = position + 100`, []string{"projected balances are the sums of the postings"}},
		},
		"the list shows no charge that is not there": {
			{"a_charge_without_an_event", `
insert into charge_list (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select generation, 'ch_none', merchant_id, order_id, status, created_at, version, view
  from charge_list
 where charge_id = '{sold}'`, nil},
			{"a_charge_listed_before_it_was_folded", `update projections set txid = '0', position = 0`, []string{
				"projected balances are the sums of the postings",
			}},
		},
		"projected balances are the sums of the postings": {
			{"money_that_was_never_posted", `update account_balances set debits = debits + 1 where account = 'psp_receivable:stripe:USD'`, nil},
			{"an_account_that_was_left_out", `delete from account_balances where account = 'fee_revenue:payonce:USD'`, nil},
			{"an_account_without_postings", `insert into account_balances select generation, 'globex', 'merchant_payable:globex:USD', 1, 1 from projections where state = 'live'`, nil},
		},
	}
}
