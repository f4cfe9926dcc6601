package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testrun"
)

type mark struct{}

// observe notes claims and attempts. The context of an attempt holds its number.
func observe(p *inbox.Processor, d *diary) {
	p.OnClaim = func(messages, deaths int) { d.note("claimed:%d:%d", messages, deaths) }
	p.OnAttempt = func(ctx context.Context, its *inbox.Delivery) (context.Context, func(inbox.End)) {
		d.note("begun:%s", its.Metadata["traceparent"])
		return context.WithValue(ctx, mark{}, its.Attempt), func(end inbox.End) { d.note("%s", end) }
	}
}

func TestProcessor_callsItsObservers(t *testing.T) {
	t.Parallel()
	interrupted := func(ctx context.Context, _ *postgres.DB, _ *inbox.Delivery) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for name, test := range map[string]struct {
		found  string // of the message
		handle func(ctx context.Context, db *postgres.DB, d *inbox.Delivery) error
		want   string
	}{
		"done by the inbox":        {want: "claimed:1:0 begun:t1 handled:1 done"},
		"done by the handler":      {handle: func(ctx context.Context, db *postgres.DB, d *inbox.Delivery) error { return finish(ctx, db, d) }, want: "claimed:1:0 begun:t1 handled:1 done"},
		"an error":                 {handle: saying(errors.New("odd")), want: "claimed:1:0 begun:t1 handled:1 failed"},
		"a panic":                  {handle: func(context.Context, *postgres.DB, *inbox.Delivery) error { panic("odd") }, want: "claimed:1:0 begun:t1 handled:1 failed"},
		"a wait":                   {handle: saying(&inbox.WaitError{Err: errors.New("away")}), want: "claimed:1:0 begun:t1 handled:1 waiting"},
		"a wait for an operator":   {handle: saying(&inbox.WaitError{NeedsOperator: true, Err: errors.New("no key")}), want: "claimed:1:0 begun:t1 handled:1 blocked"},
		"a dead letter":            {handle: saying(&inbox.DeadLetterError{Err: errors.New("never")}), want: "claimed:1:0 begun:t1 handled:1 dead_letter"},
		"an interruption":          {handle: interrupted, want: "claimed:1:0 begun:t1 handled:1 released"},
		"the second attempt":       {found: `attempts = 1`, want: "claimed:1:0 begun:t1 handled:2 done"},
		"after the holder's death": {found: `status = 'running', fence = 1, attempts = 1`, want: "claimed:1:1 begun:t1 handled:2 done"},
		"after too many deaths":    {found: `status = 'running', fence = 11, attempts = 11, deaths = 11`, want: "claimed:1:1 begun:t1 dead_letter"},
		"a lost lease": {handle: func(ctx context.Context, db *postgres.DB, d *inbox.Delivery) error {
			if _, err := db.Pool().Exec(ctx, `update inbox set fence = fence + 1`); err != nil {
				return err
			}
			return finish(ctx, db, d)
		}, want: "claimed:1:0 begun:t1 handled:1 lost"},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t, "m1@k")
			write(t, db, `update inbox set metadata = '{"traceparent": "t1"}'`)
			if test.found != "" {
				write(t, db, `update inbox set `+test.found)
				silence(t, db)
			}
			noted, handling := &diary{}, make(chan struct{}, 1)
			p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
				noted.note("handled:%v", ctx.Value(mark{}))
				handling <- struct{}{}
				if test.handle == nil {
					return nil
				}
				return test.handle(ctx, db, d)
			})
			observe(p, noted)
			p.Drain = 1
			stop := start(t, p)
			if name == "an interruption" {
				await.Receive(t, "the handler", handling)
			} else {
				await.True(t, "the end is noted", func() bool { return noted.String() == test.want })
			}
			stop()
			noted.want(t, test.want)
		})
	}
}

func saying(err error) func(context.Context, *postgres.DB, *inbox.Delivery) error {
	return func(context.Context, *postgres.DB, *inbox.Delivery) error { return err }
}

// TestProcessor_logsWhatIsNotDone uses the default logger, since the processor has none.
func TestProcessor_logsWhatIsNotDone(t *testing.T) { //nolint:paralleltest // it sets the default logger
	before, lines := slog.Default(), &diary{}
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(lines, nil)))
	db := fresh(t, "m1@done", "m2@failed", "m3@waiting", "m4@dead")
	p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
		return map[string]error{
			"failed": errors.New("odd"), "waiting": &inbox.WaitError{Err: errors.New("away")}, "dead": &inbox.DeadLetterError{Err: errors.New("never")},
		}[d.OrderingKey]
	})
	p.Log = nil
	stop := start(t, p)
	await.Row(t, db, `select count(*) = 4 from inbox where status = 'done' or last_error <> ''`)
	stop()
	logged := regexp.MustCompile(`level=.*`).FindAllString(lines.String(), -1)
	slices.Sort(logged)
	testrun.Same(t, "lines", []string{
		`level=ERROR msg="dead letter" receiver=r message_id=m4 ordering_key=dead attempt=1 reason="dead letter: never"`,
		`level=INFO msg="message waits" receiver=r message_id=m3 ordering_key=waiting attempt=1 reason="waiting: away"`,
		`level=WARN msg="attempt failed" receiver=r message_id=m2 ordering_key=failed attempt=1 reason=odd`,
	}, logged)
}
