package timeline_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/timeline"
)

func at(milliseconds int) time.Time {
	return time.Date(2026, 5, 4, 3, 2, 1, milliseconds*int(time.Millisecond), time.UTC)
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	tl := timeline.Timeline{
		AsOf: at(900),
		Charges: []timeline.Charge{{
			ID: "ch_1", MerchantID: "acme", OrderID: "17\x1b[2J", Amount: 1000, Currency: "USD", Status: domain.Succeeded,
		}},
		Entries: []timeline.Entry{
			{At: at(1), Kind: timeline.Key, ChargeID: "ch_1", What: "POST /v1/charges", Who: "acme", Detail: map[string]any{
				"status_code": 202, "key": "a b", "expires_at": at(0),
			}},
			{At: at(2), Kind: timeline.Event, ChargeID: "ch_1", Version: 1, What: "charge.requested.v1", Who: "api", Detail: map[string]any{
				"items": []string{"2 mug", "1 tshirt"}, "order_id": "17\x1b[2J", "fee": int64(0),
			}},
		},
	}
	tl.Add(timeline.Entry{At: at(1), Kind: timeline.Event, ChargeID: "ch_1", What: "earlier\n", Who: "api", Detail: map[string]any{"empty": ""}})

	for _, test := range []struct {
		name string
		more []timeline.Charge
		want string
	}{
		{"of one charge", nil, `ch_1  succeeded  1000 USD  merchant acme  order 17�[2J
WHEN (UTC)               KIND   WHAT                   WHO   DETAIL
2026-05-04 03:02:01.001  key    POST /v1/charges       acme  expires_at=2026-05-04T03:02:01Z key="a b" status_code=202
2026-05-04 03:02:01.001  event  earlier�               api   empty=""
2026-05-04 03:02:01.002  event  1 charge.requested.v1  api   fee=0 items="2 mug, 1 tshirt" order_id="17\x1b[2J"
`},
		{"of several charges", []timeline.Charge{{ID: "ch_2", MerchantID: "acme", OrderID: "18", Amount: 1, Currency: "EUR"}}, `ch_1  succeeded  1000 USD  merchant acme  order 17�[2J
ch_2  not readable  1 EUR  merchant acme  order 18
WHEN (UTC)               CHARGE  KIND   WHAT                   WHO   DETAIL
2026-05-04 03:02:01.001  ch_1    key    POST /v1/charges       acme  expires_at=2026-05-04T03:02:01Z key="a b" status_code=202
2026-05-04 03:02:01.001  ch_1    event  earlier�               api   empty=""
2026-05-04 03:02:01.002  ch_1    event  1 charge.requested.v1  api   fee=0 items="2 mug, 1 tshirt" order_id="17\x1b[2J"
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			shown := tl
			shown.Charges = append(tl.Charges[:1:1], test.more...)
			var got strings.Builder
			if err := shown.WriteTable(&got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	t.Run("says when it could not", func(t *testing.T) {
		t.Parallel()
		for _, shown := range []timeline.Timeline{tl, {}} {
			if err := shown.WriteTable(fullDisk{}); !errors.Is(err, errFull) {
				t.Errorf("the error is %v", err)
			}
		}
	})
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }
