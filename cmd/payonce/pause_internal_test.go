package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestPause(t *testing.T) {
	t.Parallel()
	db := opened(t, testdb.URL(t), postgres.Options{})
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	for _, test := range []struct {
		args string
		want []fulfillment.Pause // nil: refused
	}{
		{"pause fulfillment", []fulfillment.Pause{{What: "fulfillment"}}},
		{"pause fulfillment", []fulfillment.Pause{{What: "fulfillment"}}},
		{"pause merchant acme", []fulfillment.Pause{{What: "fulfillment"}, {What: "merchant", Merchant: "acme"}}},
		{"pause merchant unknown", nil},
		{"pause merchant", nil},
		{"pause notification acme", nil},
		{"pause everything", nil},
		{"resume", nil},
		{"resume notification", nil},
		{"resume fulfillment", []fulfillment.Pause{{What: "merchant", Merchant: "acme"}}},
		{"resume fulfillment", []fulfillment.Pause{{What: "merchant", Merchant: "acme"}}},
		{"pause", []fulfillment.Pause{{What: "merchant", Merchant: "acme"}}},
		{"resume merchant acme", []fulfillment.Pause{}},
		{"pause notification", []fulfillment.Pause{{What: "notification"}, {What: "resend"}}},
	} {
		var cli commands
		got := []fulfillment.Pause(nil)
		_, err := commandLine(&cli, append(strings.Fields(test.args), "--json"))
		if err == nil {
			command := databaseCommand(cli.Pause)
			if strings.HasPrefix(test.args, "resume") {
				command = cli.Resume
			}
			var out, said string
			if out, said, err = execute(t, db, command); err == nil {
				got = dataOf[fulfillment.Pause](t, out)
				if changes := test.args != "pause"; changes != strings.Contains(said, "within 2 s") {
					t.Errorf("%s said %q", test.args, said)
				}
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != (test.want == nil) {
			t.Errorf("%s: %v (-want +got):\n%s", test.args, err, diff)
		}
	}
	wantRefused(t, db, pauseCmd{What: "merchant", Merchant: "unknown"}, `there is no merchant "unknown": payonce seed registers one`)
	wantRefused(t, db, resumeCmd{pauseCmd{What: "merchant", Merchant: "unknown"}}, "merchant unknown was never paused: payonce pause lists what is")
	actions := testdb.All[string](t, db, `
select concat_ws(' ', actor = current_setting('payonce.actor'), subject, nullif(merchant_id, ''), before ->> 'paused', after ->> 'paused')
  from operator_actions
 where action = 'pause set'
 order by action_id`)
	want := []string{"t fulfillment true", "t merchant acme true", "t fulfillment true false", "t merchant acme true false", "t notification true", "t resend true"}
	testrun.Same(t, "actions", want, actions)
}
