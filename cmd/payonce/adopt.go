package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/stripe"
)

type adoptCmd struct {
	PaymentIntents []string `arg:"" optional:"" name:"payment-intent" help:"The provider's ids. Without them all lost payments whose money was taken count."`

	Refund  bool   `help:"Refund the money. Without it the payments are printed. A client that sends the key of such a payment later gets a failed charge."`
	Release string `placeholder:"INTENT" help:"Take the decision back to refund this payment, whose refund the provider refuses: a client that sends its key again has it."`
	JSON    bool   `name:"json" help:"Print the payments as JSON."`

	reasonFlag
}

func (a adoptCmd) check() error {
	switch {
	case a.Release != "" && (a.Refund || len(a.PaymentIntents) > 0):
		return errors.New("--release takes one decision back: leave out --refund and other payments")
	case (a.Refund || a.Release != "") && a.Reason == "":
		return errors.New("--refund and --release are decisions: say why with --reason")
	}
	return a.checkLength()
}

// run refunds the payments whose charge the database has lost. It cannot write their
// history: the provider does not know the merchant.
func (a adoptCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return withProvider(func(client *stripe.Client) error {
		if client == nil {
			return errors.New("adopt reads the provider: set STRIPE_SECRET_KEY")
		}
		if err := checkAccount(ctx, db, client); err != nil {
			return err
		}
		if err := rescan(ctx, c, db, client); err != nil {
			return err
		}
		if a.Release != "" {
			return release(ctx, db, client, a.Release)
		}
		return a.adoptAll(ctx, c, db, client)
	})
}

// rescan finds what the worker of an old primary did after the workers here had read the list.
func rescan(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	listed, end := c.progress("reading the provider's payments")
	defer end()
	return restore.Rescan(ctx, slog.New(slog.DiscardHandler), db, func(ctx context.Context, since time.Time) iter.Seq2[stripe.Intent, error] {
		return translate(listed, client.Intents(ctx, since), func(in stripe.Intent) stripe.Intent { return in })
	})
}

// adoptAll goes on after a payment that cannot be refunded.
func (a adoptCmd) adoptAll(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	all, err := restore.ListLost(ctx, db)
	if err != nil {
		return err
	}
	var taken []restore.Lost
	var failed []error
	left := slices.Clone(a.PaymentIntents)
	for _, l := range all {
		if len(a.PaymentIntents) > 0 && !slices.Contains(left, l.PaymentIntent) {
			continue
		}
		ours, err := l.Refund != "", error(nil)
		if !ours {
			ours, err = a.adopt(ctx, db, client, &l)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", l.PaymentIntent, err))
		}
		if ours || err != nil {
			taken = append(taken, l)
			left = slices.DeleteFunc(left, func(named string) bool { return named == l.PaymentIntent })
		}
	}
	for _, named := range left {
		failed = append(failed, fmt.Errorf("%s: it is no lost payment whose money was taken, or a charge has it", named))
	}
	printList(&c.stdout, a.JSON, taken, "PAYMENT INTENT\tREFERENCE\tAMOUNT\tCURRENCY\tCREATED\tREFUND", func(l restore.Lost) []any {
		return []any{l.PaymentIntent, l.Reference, l.Amount, l.Currency, l.CreatedAt, cmp.Or(l.Refund, "-")}
	})
	return errors.Join(failed...)
}

// adopt returns false if the payment took no money, or a charge has it.
func (a adoptCmd) adopt(ctx context.Context, db *postgres.DB, client *stripe.Client, l *restore.Lost) (ours bool, err error) {
	in, err := client.RetrieveIntent(ctx, l.PaymentIntent)
	if err != nil || in.AmountReceived == 0 || !a.Refund {
		return in.AmountReceived > 0, err
	}
	return restore.Adopt(ctx, db, in.ID, func() (string, error) {
		l.Adopted = true
		l.Refund, err = refund(ctx, client, in)
		return l.Refund, err
	})
}

// refund refunds what is left of a captured intent, once: its refund has a name that follows
// from the intent's, and the provider refunds no more than was captured. A key whose saved answer
// is a failure is followed by the next one.
func refund(ctx context.Context, client *stripe.Client, in stripe.Intent) (id string, err error) {
	for key := 0; ; key++ {
		id, left, failures, err := refunded(ctx, client, in)
		if err != nil || id != "" {
			return id, err
		}
		name := refundName(in.ID)
		r, err := client.CreateRefund(ctx, fmt.Sprintf("%s-%d-%d", name, failures, key),
			stripe.RefundParams{Reference: name, PaymentIntent: in.ID, Amount: left, Currency: in.Currency})
		saved, isFailed := errors.AsType[*stripe.FailedError](err)
		switch {
		case isFailed && (saved.Replayed || saved.StatusCode == stripe.OtherParameters) && key < domain.MaxKeys-1:
			continue
		case err == nil && (r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled):
			return "", fmt.Errorf("refund %s %s: %s", r.ID, r.Status, r.FailureReason)
		}
		return r.ID, err
	}
}

func refundName(intent string) string { return "adopt_" + intent }

// refunded returns the refund if there is one, or the last of several that leave nothing. Else it
// returns how much is left, and how many refunds failed.
func refunded(ctx context.Context, client *stripe.Client, in stripe.Intent) (id string, left int64, failures int, err error) {
	left = in.AmountReceived
	for r, err := range client.Refunds(ctx, in.ID) {
		switch {
		case err != nil:
			return "", 0, 0, err
		case r.Status == stripe.RefundFailed || r.Status == stripe.RefundCanceled:
			failures++
		case r.Reference == refundName(in.ID):
			return r.ID, 0, 0, nil
		default:
			id, left = r.ID, left-r.Amount
		}
	}
	if left > 0 {
		id = ""
	}
	return id, left, failures, nil
}

// release takes back the decision to refund a payment whose refund cannot be made.
func release(ctx context.Context, db *postgres.DB, client *stripe.Client, intent string) error {
	in, err := client.RetrieveIntent(ctx, intent)
	if err != nil {
		return err
	}
	switch id, _, _, err := refunded(ctx, client, in); {
	case err != nil:
		return err
	case id != "":
		return fmt.Errorf("%s is refunded by %s: record it with --refund", intent, id)
	}
	released, err := restore.Release(ctx, db, intent)
	if err == nil && !released {
		err = fmt.Errorf("%s: there is no decision to refund it, or the refund is made", intent)
	}
	return err
}
