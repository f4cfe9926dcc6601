package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
)

type auditCmd struct {
	JSON bool `name:"json" help:"Print the report as JSON."`
}

// provider is the account to reconcile with; none where the key is empty.
type provider struct {
	SecretKey config.Secret `env:"STRIPE_SECRET_KEY"`
	APIBase   string        `env:"STRIPE_API_BASE"`
}

// An audit reads whole tables, so each of its statements may take longer than
// traffic's.
const auditStatementTimeout = 10 * time.Minute

// violated is the exit code of an audit that found something.
const violated exitError = 1

// Run prints the report on stdout. It exits with 1 if a promise is violated, or
// if the audit could not be finished.
func (c auditCmd) Run(ctx context.Context) error {
	env, err := config.Load[environment]()
	if err != nil {
		return err
	}
	account, err := config.Load[provider]()
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, env.DatabaseURL.Reveal(), postgres.Options{
		Application: "payonce-audit", MaxConns: 1, AllowPlaintext: env.AllowPlaintext, StatementTimeout: auditStatementTimeout,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := audit.Run(ctx, db)
	if err != nil {
		return err
	}
	if account.SecretKey == "" {
		fmt.Fprintln(os.Stderr, "not run: the reconciliation with the provider, for STRIPE_SECRET_KEY is not set")
	} else if err := reconcile(ctx, db, account, &report); err != nil {
		return err
	}
	if err := c.print(os.Stdout, report); err != nil {
		return err
	}
	if !report.OK {
		return violated
	}
	return nil
}

func (c auditCmd) print(w io.Writer, report audit.Report) error {
	if !c.JSON {
		return report.WriteTable(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(report); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func reconcile(ctx context.Context, db *postgres.DB, account provider, report *audit.Report) error {
	client, err := stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase})
	if err != nil {
		return err
	}
	defer client.Close()
	checks, err := audit.Reconcile(ctx, db,
		translate(client.Intents(ctx), func(in stripe.Intent) audit.Intent {
			return audit.Intent{
				ID: in.ID, Reference: in.Reference, Status: string(in.Status),
				Amount: in.Amount, AmountReceived: in.AmountReceived, Currency: in.Currency,
			}
		}),
		translate(client.Refunds(ctx), func(r stripe.Refund) audit.Refund {
			return audit.Refund{
				ID: r.ID, Reference: r.Reference, PaymentIntent: r.PaymentIntent, Status: r.Status,
				Amount: r.Amount, Currency: r.Currency,
			}
		}))
	if err != nil {
		return err
	}
	report.Add(checks...)
	return nil
}

// translate turns a list of the provider's into the audit's.
func translate[S, T any](list iter.Seq2[S, error], to func(S) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for s, err := range list {
			if !yield(to(s), err) {
				return
			}
		}
	}
}
