package fulfillment_test

import (
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/ledger"
)

// TestForgedRequest is about requests that no api would have accepted. The charge's message
// becomes a dead letter before anything is called.
func TestForgedRequest(t *testing.T) {
	t.Parallel()
	dear := order()
	dear.Items, dear.Amount = nil, domain.MaxAmount+1
	runAll(t, map[string]scenario{
		"a refund of more than was captured": {
			begin: func(f *fixture) { f.request(f.capture(order()), "re_1", 2000) }, ends: "dead", want: back(asked, "", "dead"),
		},
		"a cancellation after the outcome": {
			begin: func(f *fixture) {
				s := f.append(f.capture(order()), domain.ChargeCancelRequested{})
				f.put("fulfillment", s, s.Charge.Version, s.Head().ID.String())
			},
			ends: "dead", want: back(cancelAsk, "", "dead"),
		},
		"a charge of more than may be charged": {
			begin: func(f *fixture) {
				s := f.append(ledger.New("ch_1"), dear)
				f.put("fulfillment", s, 1, s.Head().ID.String())
			},
			ends: "dead", want: snapshot{Events: "charge.requested", Stock: untouched, Message: "dead"},
		},
	})
}
