package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/webhook"
)

type webhooksCmd struct {
	Rotate webhooksRotateCmd `cmd:"" help:"Replace a merchant's webhook secret. Deliveries are signed by both until the overlap is over."`
	Resend webhooksResendCmd `cmd:"" help:"Resend webhooks, with the webhook-ids that they had."`
}

// printSecrets shows no secret, nor where an endpoint has its token.
func printSecrets(p *printer, secrets []merchants.Secret) {
	printList(p, false, secrets, "MERCHANT\tENDPOINT\tFINGERPRINT\tSIGNS\tCREATED\tENDS\tBY", func(s merchants.Secret) []any {
		signs := "no"
		if s.Valid {
			signs = "yes"
		}
		return []any{s.Merchant, s.Origin, s.Fingerprint, signs, s.CreatedAt, timeOr(s.EndsAt, "never"), s.CreatedBy}
	})
}

// overlap is how long a secret that was replaced by seed goes on signing.
const overlap = 24 * time.Hour

type webhooksRotateCmd struct {
	Merchant      string `required:"" placeholder:"ID" help:"The merchant whose secret is replaced."`
	WebhookSecret string `hidden:"" help:"Refused: an argument is no place for a secret."`

	WebhookSecretFile []byte `type:"filecontent" placeholder:"PATH" help:"File that holds the new secret, as WEBHOOK_SECRET does: whsec_ and 24 to 64 bytes in base64. Without it one is created and printed once."`

	Overlap time.Duration `default:"24h" help:"How long the old secrets still sign beside the new one. 0s ends them at once."`
	JSON    bool          `name:"json" help:"Print the secrets, and the new one if it was created, as JSON."`
}

// AfterApply reads the webhook secret.
func (r *webhooksRotateCmd) AfterApply() (err error) {
	r.WebhookSecret, err = webhookSecret(r.WebhookSecret, r.WebhookSecretFile, false)
	return err
}

// webhookSecret is the secret of a file, of the environment or, for a test, of an argument.
func webhookSecret(argument string, file []byte, test bool) (string, error) {
	env, err := program.Load[struct {
		// Webhook secret that seed and webhooks rotate set.
		Secret program.Secret `env:"WEBHOOK_SECRET"`
	}](program.Environ())
	if argument != "" && !test {
		err = errors.New("a webhook secret among the arguments is seen by other users of the machine and stays in the shell's history: give it by --webhook-secret-file or in WEBHOOK_SECRET")
	}
	return cmp.Or(strings.TrimSpace(string(file)), argument, env.Secret.Reveal()), err
}

const (
	shortestSecret = 24 // bytes, as Standard Webhooks asks for
	longestSecret  = 64
	longestOverlap = 30 * 24 * time.Hour
)

func (r webhooksRotateCmd) check() error {
	if r.Overlap < 0 || r.Overlap > longestOverlap {
		return fmt.Errorf("--overlap is %s: give 0s to %s", r.Overlap, longestOverlap)
	}
	return checkSecret(r.WebhookSecret)
}

// checkSecret refuses a webhook secret that is given and is none.
func checkSecret(given string) error {
	if given == "" {
		return nil
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(given, "whsec_"))
	if err != nil || webhook.CheckSecret(given) != nil || len(secret) < shortestSecret || len(secret) > longestSecret {
		return fmt.Errorf("--webhook-secret must be whsec_ and %d to %d bytes in base64, as openssl rand -base64 32 prints them", shortestSecret, longestSecret)
	}
	return nil
}

// validSecrets bounds how many sign beside each other. Two are the rule; a third
// replaces one that was lost before the merchant had it.
const validSecrets = 5

// rotated is the one thing that shows a whole secret.
type rotated struct {
	Whole string             `json:"secret,omitempty"` // that was made
	Data  []merchants.Secret `json:"data"`
}

// run prints a secret that was made alone on stdout, and what holds now on stderr.
//
// If we die here: after the commit and before the secret is printed there is a secret that
// the merchant does not have. The merchant's own signs beside it until the overlap ends:
// rotate again.
// Test: TestWebhooksRotate/a_secret_that_was_lost_is_replaced.
func (r webhooksRotateCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	made := ""
	if r.WebhookSecret == "" {
		made = merchants.NewWebhookSecret()
		r.WebhookSecret = made
	}
	newest, err := r.newest(ctx, db)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	merchants.RotateSecret(b, newest, r.WebhookSecret, r.Overlap, operator())
	failed := db.Commit(ctx, b)
	secrets, err := merchants.ListSecrets(ctx, db, r.Merchant)
	switch {
	case err != nil:
		return errors.Join(failed, err)
	// The answer of the commit was lost, and the list shows that it happened.
	case groupcommit.OutcomeOf(failed) == groupcommit.Unknown && secrets[0].Is(r.WebhookSecret):
	case groupcommit.Constraint(failed) == "webhook_secrets_pkey":
		return fmt.Errorf("another command replaced the webhook secret of %s at this moment, and yours was not taken: payonce actions shows it", r.Merchant)
	case failed != nil:
		return fmt.Errorf("rotate the webhook secret of %s: %w", r.Merchant, failed)
	}
	if r.JSON {
		c.stdout.json(rotated{Whole: made, Data: secrets})
		return nil
	}
	printSecrets(&c.stderr, secrets)
	if made != "" {
		c.stderr.printf("the new secret is shown this once; no command shows it again\n")
		c.stdout.printf("%s\n", made)
	}
	return nil
}

// newest is the secret to be replaced, if it may be.
func (r webhooksRotateCmd) newest(ctx context.Context, db *postgres.DB) (merchants.Secret, error) {
	secrets, err := merchants.ListSecrets(ctx, db, r.Merchant)
	if err != nil {
		return merchants.Secret{}, err
	}
	if len(secrets) == 0 {
		return merchants.Secret{}, fmt.Errorf("merchant %q has no webhook: payonce seed gives it one with its first secret", r.Merchant)
	}
	valid := 0
	for _, s := range secrets {
		if s.Valid && s.Is(r.WebhookSecret) {
			return merchants.Secret{}, fmt.Errorf("that secret signs already, with the fingerprint %s", s.Fingerprint)
		}
		if s.Valid {
			valid++
		}
	}
	if valid >= validSecrets && r.Overlap > 0 {
		return merchants.Secret{}, fmt.Errorf("%d secrets of %s sign already: wait until one ends, or end the old ones with --overlap 0s", valid, r.Merchant)
	}
	return secrets[0], nil
}
