package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/model"

	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/webhook"
)

type webhooksCmd struct {
	Rotate webhooksRotateCmd `cmd:"" help:"Replace a merchant's webhook secret. Deliveries are signed by both until the overlap is over." example:"webhooks rotate --merchant acme"`
	Resend webhooksResendCmd `cmd:"" help:"Resend webhooks, with the webhook-ids that they had." example:"webhooks resend ch_01a1fd336ed47bf6827f5db90a1e2454"`
}

type webhooksRotateCmd struct {
	Merchant string `required:"" placeholder:"ID" help:"The merchant whose secret is replaced."`

	WebhookSecretFile []byte `type:"filecontent" placeholder:"PATH" help:"File that holds the new secret, as WEBHOOK_SECRET does: whsec_ and 24 to 64 bytes in base64. Without it one is created and printed once."`

	Overlap model.Duration `default:"24h" help:"How long the old secrets still sign beside the new one. 0s ends them at once."`

	secret string // that is given; "": one is made
}

func (r *webhooksRotateCmd) AfterApply() (err error) {
	r.secret, err = webhookSecret("", r.WebhookSecretFile, false)
	return err
}

// webhookSecret is the secret of a file, of the environment or, for a test, of an argument. A text
// that is none is refused, and not shown.
func webhookSecret(argument string, file []byte, test bool) (string, error) {
	env, err := program.Load[struct {
		// Webhook secret that seed and webhooks rotate set.
		Secret program.Secret `env:"WEBHOOK_SECRET"`
	}](program.Environ())
	given := cmp.Or(strings.TrimSpace(string(file)), argument, env.Secret.Reveal())
	if err != nil || given == "" {
		return "", err
	}
	if argument != "" && !test {
		return "", errors.New("a webhook secret among the arguments is seen by other users of the machine and stays in the shell's history: give it by --webhook-secret-file or in WEBHOOK_SECRET")
	}
	return given, webhook.CheckSecret(given)
}

// Run prints a secret that was made alone on stdout, and what holds now on stderr.
//
// If the answer of the commit is lost, the secret that was made is printed all the same: it may have
// been stored, and without an overlap it then signs alone.
//
// If we die here: a secret may be stored that was not printed. The old ones sign beside it until the
// overlap ends; without an overlap it signs alone. Rotate again.
// Test: TestScripts/webhooks, TestRotate_printsASecretThatMayBeStored.
func (r *webhooksRotateCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	made := ""
	if r.secret == "" {
		made = merchants.NewWebhookSecret()
		r.secret = made
	}
	secrets, err := merchants.ListSecrets(ctx, db, r.Merchant)
	if err != nil {
		return err
	}
	if len(secrets) == 0 {
		return fmt.Errorf("merchant %q has no webhook: payonce seed gives it one with its first secret", r.Merchant)
	}
	b := &pgx.Batch{}
	merchants.RotateSecret(b, secrets[0], r.secret, time.Duration(r.Overlap), operator())
	unknown := db.Commit(ctx, b)
	if unknown != nil {
		unknown = fmt.Errorf("rotate the webhook secret of %s: %w", r.Merchant, unknown)
		if groupcommit.OutcomeOf(unknown) != groupcommit.Unknown {
			return unknown
		}
	}
	secrets, err = merchants.ListSecrets(ctx, db, r.Merchant)
	showSecret(c, made, secrets, "merchant fingerprint valid created_at ends_at created_by")
	return errors.Join(unknown, err) // of the list: a secret that was made is printed without it too
}

type webhooksResendCmd struct {
	Names []string `arg:"" name:"id" help:"Id of an event, which is the webhook-id, or of a charge: all of its webhook events and those of its refunds."`
}

// Run returns when the resends are recorded; the workers deliver.
//
// If we die here: all resends are recorded, with their messages, or none is.
// The operator repeats the command, and the merchant knows the repeated webhooks by their ids.
// Test: TestScripts/resend.
func (r webhooksResendCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	events, err := operate.FindWebhookEvents(ctx, db, r.Names)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	for _, e := range events {
		operate.Resend(b, e, operator())
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("ask for %d webhooks once more (ask again if in doubt): %w", len(events), err)
	}
	return showList(c, events, nil, "type charge_id event_id")
}
