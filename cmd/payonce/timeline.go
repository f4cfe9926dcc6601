package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/timeline"
)

type timelineCmd struct {
	Name     string `arg:"" help:"A charge (ch_…), a refund (re_…) or an idempotency key."`
	Merchant string `placeholder:"ID" help:"Look at this merchant's alone."`
	JSON     bool   `name:"json" help:"Print the timeline as JSON."`
}

// A timeline looks for things to which no index leads.
const timelineStatementTimeout = 2 * time.Minute

// Run prints on stdout what happened and, where STRIPE_SECRET_KEY is set, what
// the provider holds now. It changes nothing, there or here.
func (c timelineCmd) Run(ctx context.Context) error {
	env, err := config.Load[environment]()
	if err != nil {
		return err
	}
	account, err := config.Load[provider]()
	if err != nil {
		return err
	}
	var client *stripe.Client
	if account.SecretKey != "" {
		client, err = stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase})
		if err != nil {
			return err
		}
		defer client.Close()
	}
	db, err := env.open(ctx, postgres.Options{
		AllowReadOnly: true, // a hot standby answers too
		Application:   "payonce-timeline", MaxConns: 1, StatementTimeout: timelineStatementTimeout,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	return c.tell(ctx, os.Stdout, db, client)
}

// tell leaves the provider out where there is no client. If the provider does
// not answer, everything else is printed before the error is returned: that is
// when a timeline is wanted.
func (c timelineCmd) tell(ctx context.Context, w io.Writer, db *postgres.DB, client *stripe.Client) error {
	t, err := timeline.Read(ctx, db, c.Name, c.Merchant)
	if err != nil {
		return err
	}
	var silent error
	if client != nil {
		silent = askProvider(ctx, client, &t)
	}
	if c.JSON {
		err = printJSON(w, t)
	} else {
		err = t.WriteTable(w)
	}
	return errors.Join(err, silent)
}

// askProvider adds the payment intents and refunds of the timeline's charges as
// the provider holds them now.
func askProvider(ctx context.Context, client *stripe.Client, t *timeline.Timeline) error {
	var silent []error
	for _, charge := range t.Charges {
		if charge.PaymentIntent == "" {
			continue
		}
		held := func(what string, detail map[string]any) {
			t.Add(timeline.Entry{
				At: t.AsOf, Kind: timeline.Provider, ChargeID: charge.ID, What: what, Who: "stripe", Detail: detail,
			})
		}
		intent, err := client.RetrieveIntent(ctx, charge.PaymentIntent)
		if err != nil {
			silent = append(silent, fmt.Errorf("not shown: %w", err))
			continue
		}
		held("payment_intent", intentDetail(intent))
		for refund, err := range client.RefundsOf(ctx, charge.PaymentIntent) {
			if err != nil {
				silent = append(silent, fmt.Errorf("not shown: %w", err))
				break
			}
			held("refund", refundDetail(refund))
		}
	}
	return errors.Join(silent...)
}

func intentDetail(in stripe.Intent) map[string]any {
	detail := map[string]any{
		"id": in.ID, "status": in.Status, "amount": in.Amount, "amount_received": in.AmountReceived,
		"currency": in.Currency, "reference": in.Reference, "created": in.Created,
	}
	if in.Decline != nil {
		detail["decline"] = in.Decline.String()
	}
	return detail
}

func refundDetail(r stripe.Refund) map[string]any {
	detail := map[string]any{
		"id": r.ID, "status": r.Status, "amount": r.Amount, "currency": r.Currency, "reference": r.Reference,
	}
	if r.FailureReason != "" {
		detail["failure_reason"] = r.FailureReason
	}
	return detail
}
