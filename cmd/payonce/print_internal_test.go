package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testrun"
)

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestPrint shows what people see, in which no text of others starts a line of its own,
// and that a failed write is an error.
func TestPrint(t *testing.T) {
	t.Parallel()
	report := audit.Report{}
	report.Add(
		audit.Check{Name: "streams are legal", Checked: 12345},
		audit.Check{Name: "one capture per charge", Checked: 200, Violated: 2, Examples: []string{"ch_1: captured 2 times", "ch_2:\x1b[2J\tcaptured"}},
		audit.Check{Name: "no message is overdue or a dead letter", Checked: 400, Violated: 3, Examples: []string{"message 1:\ndead letter"}},
	)
	at := func(milliseconds int) time.Time {
		return time.Date(2026, 5, 4, 3, 2, 1, milliseconds*int(time.Millisecond), time.UTC)
	}
	one := audit.Timeline{
		Charges: []audit.TimelineCharge{{
			ID: "ch_1", MerchantID: "acme", OrderID: "17\x1b[2J", Amount: 1000, Currency: "USD", Status: domain.Succeeded,
		}},
		Entries: []audit.TimelineEntry{
			{At: at(1), Kind: "key", ChargeID: "ch_1", What: "POST /v1/charges", Who: "acme", Detail: audit.Detail{
				"status_code": 202, "key": "a b", "expires_at": "2026-05-04T03:02:01.5Z",
			}},
			{At: at(1), Kind: "event", ChargeID: "ch_1", What: "earlier\n", Who: "api", Detail: audit.Detail{"empty": ""}},
			{At: at(2), Kind: "event", ChargeID: "ch_1", Version: 1, What: "charge.requested.v1", Who: "api", Detail: audit.Detail{
				"items": []string{"2 mug", "1 tshirt"}, "order_id": "17\x1b[2J", "fee": 0, "passed_by": []any{"a", "b"},
			}},
		},
	}
	several := audit.Timeline{
		Charges: append(one.Charges[:1:1], audit.TimelineCharge{ID: "ch_2", MerchantID: "acme", OrderID: "18", Amount: 1, Currency: "EUR"}),
		Entries: one.Entries[:1],
	}
	for _, test := range []struct {
		name  string
		print func(*printer)
		want  string
	}{
		{"an audit", func(p *printer) { auditCmd{}.print(p, report) }, `CHECK                                   CHECKED  VIOLATED  RESULT
streams are legal                       12345    0         ok
one capture per charge                  200      2         VIOLATED
no message is overdue or a dead letter  400      3         VIOLATED

one capture per charge, for example
  ch_1: captured 2 times
  ch_2:�[2J�captured

no message is overdue or a dead letter, for example
  message 1:�dead letter
`},
		{"a quiet audit", func(p *printer) { auditCmd{Quiet: true}.print(p, report) }, `one capture per charge: ch_1: captured 2 times
one capture per charge: ch_2:�[2J�captured
no message is overdue or a dead letter: message 1:�dead letter
no message is overdue or a dead letter: and 2 more of 400
`},
		{"a timeline", func(p *printer) { printTimeline(p, one) }, `ch_1  succeeded  1000 USD  merchant acme  order 17�[2J
WHEN (UTC)               KIND   WHAT                   WHO   DETAIL
2026-05-04 03:02:01.001  key    POST /v1/charges       acme  expires_at=2026-05-04T03:02:01Z key="a b" status_code=202
2026-05-04 03:02:01.001  event  earlier�               api   empty=""
2026-05-04 03:02:01.002  event  1 charge.requested.v1  api   fee=0 items="2 mug, 1 tshirt" order_id="17\x1b[2J" passed_by="a, b"
`},
		{"a timeline of several charges", func(p *printer) { printTimeline(p, several) }, `ch_1  succeeded  1000 USD  merchant acme  order 17�[2J
ch_2  not readable  1 EUR  merchant acme  order 18
WHEN (UTC)               CHARGE  KIND  WHAT              WHO   DETAIL
2026-05-04 03:02:01.001  ch_1    key   POST /v1/charges  acme  expires_at=2026-05-04T03:02:01Z key="a b" status_code=202
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			test.print(&printer{w: &out})
			testrun.Same(t, "printed", test.want, out.String())
			full := &printer{w: fullDisk{}}
			if test.print(full); !errors.Is(full.err, errFull) {
				t.Errorf("on a full disk: %v", full.err)
			}
		})
	}
	var out strings.Builder
	if (auditCmd{Quiet: true}).print(&printer{w: &out}, audit.Report{OK: true}); out.Len() > 0 {
		t.Errorf("a quiet audit prints %q of what is in order", &out)
	}
}

func TestProgress_isALineEachTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		c := newConsole(io.Discard, &said)
		done, end := c.progress("events read")
		<-time.After(15 * time.Second)
		done.Store(7)
		<-time.After(10 * time.Second)
		end()
		testrun.Same(t, "on stderr", "events read, 10s\nevents read: 7, 20s\n", said.String())
	})
}

func TestProgress_isOfWhatTakesLong(t *testing.T) {
	t.Parallel()
	db := booked(t, 3)
	for says, command := range map[string]databaseCommand{
		"auditing, ":            auditCmd{NoProvider: true},
		"counting the ledger, ": rebuildCmd{},
	} {
		var said strings.Builder
		c := newConsole(io.Discard, &said)
		c.every = time.Microsecond
		for n := 0; n < 100 && !strings.Contains(said.String(), says); n++ { // a command may end before the next line
			_ = command.run(t.Context(), c, db) // an audit of these charges finds something
		}
		if !strings.Contains(said.String(), says) {
			t.Errorf("%T prints %.200q", command, said.String())
		}
	}
}
