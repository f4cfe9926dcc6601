package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/webhook"
)

type webhooksCmd struct {
	List   webhooksListCmd   `cmd:"" help:"List webhook secrets by their fingerprints, ended ones included."`
	Rotate webhooksRotateCmd `cmd:"" help:"Replace a merchant's webhook secret. Deliveries are signed by both until the overlap is over."`
	Resend webhooksResendCmd `cmd:"" help:"Resend webhooks about outcomes, with the webhook-ids that they had."`
}

type webhooksListCmd struct {
	Merchant string `placeholder:"ID" help:"List only the secrets of this merchant."`
	JSON     bool   `name:"json" help:"Print the secrets as JSON."`
}

// run shows no secret, nor where an endpoint has its token.
func (l webhooksListCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	secrets, err := merchants.ListSecrets(ctx, db, l.Merchant)
	if err != nil {
		return err
	}
	printSecrets(&c.stdout, secrets, l.JSON)
	return nil
}

func printSecrets(p *printer, secrets []merchants.Secret, asJSON bool) {
	printList(p, asJSON, secrets, "MERCHANT\tENDPOINT\tFINGERPRINT\tSIGNS\tCREATED\tENDS\tBY", func(s merchants.Secret) []any {
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
	if r.WebhookSecret == "" {
		return nil
	}
	encoded := strings.TrimPrefix(r.WebhookSecret, "whsec_")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || webhook.CheckSecret(r.WebhookSecret) != nil || len(secret) < shortestSecret || len(secret) > longestSecret {
		return fmt.Errorf("--webhook-secret must be whsec_ and %d to %d bytes in base64", shortestSecret, longestSecret)
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
		return fmt.Errorf("another command replaced the webhook secret of %s at this moment, and yours was not taken: look at payonce webhooks list", r.Merchant)
	case failed != nil:
		return fmt.Errorf("rotate the webhook secret of %s: %w", r.Merchant, failed)
	}
	if r.JSON {
		c.stdout.json(rotated{Whole: made, Data: secrets})
		return nil
	}
	printSecrets(&c.stderr, secrets, false)
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

type webhooksResendCmd struct {
	Names    []string  `arg:"" optional:"" name:"id" help:"Id of an event, which is the webhook-id, or of a charge: all of its outcomes and those of its refunds."`
	Merchant string    `placeholder:"ID" help:"All outcomes of this merchant, within --since and --until."`
	Since    time.Time `placeholder:"2026-11-21T08:00:00Z" help:"Recorded at this time or later (RFC 3339)."`
	Until    time.Time `placeholder:"2026-11-21T09:00:00Z" help:"Recorded before this time; now without it."`
	JSON     bool      `name:"json" help:"Print the webhooks as JSON."`
}

// resendPage is how many resends are committed at once.
const resendPage = 200

// options allow for reading a merchant's outcomes, to which no index leads.
func (webhooksResendCmd) options() postgres.Options {
	return postgres.Options{Application: "payonce-resend", MaxConns: 2, StatementTimeout: 2 * time.Minute}
}

func (r webhooksResendCmd) check() error {
	switch {
	case len(r.Names) == 0 && r.Merchant == "":
		return errors.New("say what: an event's id, a charge's, or --merchant and --since")
	case len(r.Names) > 0 && (r.Merchant != "" || !r.Since.IsZero() || !r.Until.IsZero()):
		return errors.New("ids, or --merchant with --since and --until, but not both")
	case r.Merchant != "" && r.Since.IsZero():
		return errors.New("--merchant needs --since")
	case !r.Until.IsZero() && !r.Until.After(r.Since):
		return errors.New("--until must be later than --since")
	}
	return nil
}

// resend is a webhook that will be delivered once more.
type resend struct {
	fulfillment.Outcome

	ResendID uuid.UUID `json:"resend_id"`
}

// run returns when the resends are recorded; the workers deliver. A webhook that cannot be
// delivered again is named on stderr and does not keep the others from it. If it was given
// by name, the exit code is then 1.
func (r webhooksResendCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	resends, refused, failed := r.record(ctx, c, db)
	if r.JSON { // also after a failure: what was recorded before it will be delivered
		c.stdout.json(map[string]any{"data": resends})
	}
	if r.Merchant == "" {
		return errors.Join(append(refused, failed)...)
	}
	for _, refusal := range refused {
		c.stderr.printf("left out: %v\n", refusal)
	}
	if failed == nil && len(resends)+len(refused) == 0 {
		return fmt.Errorf("merchant %q has no outcome within that time", r.Merchant)
	}
	return failed
}

// pages are the outcomes that are meant: those of each name, or of a merchant within a time.
// It refuses a name that has none.
func (r webhooksResendCmd) pages(ctx context.Context, db *postgres.DB, refuse func(error)) iter.Seq2[[]fulfillment.Outcome, error] {
	return func(yield func([]fulfillment.Outcome, error) bool) {
		for _, name := range r.Names {
			outcomes, err := fulfillment.OutcomesOf(ctx, db, name)
			if err == nil && len(outcomes) == 0 {
				refuse(fmt.Errorf("%q is neither an event that is an outcome nor a charge that has one", name))
			}
			if !yield(outcomes, err) {
				return
			}
		}
		page := fulfillment.Page{Merchant: r.Merchant, Since: r.Since, Until: r.Until, Limit: resendPage}
		for r.Merchant != "" {
			outcomes, err := fulfillment.OutcomesSince(ctx, db, page)
			if !yield(outcomes, err) || len(outcomes) < page.Limit {
				return
			}
			page.After = outcomes[len(outcomes)-1].Position
		}
	}
}

// record records the resends of each page in one commit.
//
// If we die here: the resends of pages that were committed are delivered, and those of later
// pages are not recorded. The operator repeats the command, and the merchant knows the
// repeated webhooks by their IDs.
// Test: TestWebhooksResend/what_a_lost_answer_leaves_open_may_be_asked_again.
func (r webhooksResendCmd) record(ctx context.Context, c *console, db *postgres.DB) (resends []resend, refused []error, err error) {
	resends = []resend{}
	refuse := func(refusal error) { refused = append(refused, refusal) }
	for outcomes, err := range r.pages(ctx, db, refuse) {
		if err != nil {
			return resends, refused, err
		}
		b := &pgx.Batch{}
		var page []resend
		for _, o := range outcomes {
			if refusal := o.Refusal(); refusal != nil {
				refuse(fmt.Errorf("%s of %s, event %s: %w", o.Type, o.ChargeID, o.EventID, refusal))
				continue
			}
			one := resend{Outcome: o, ResendID: uuid.New()}
			if err := fulfillment.Resend(b, o, one.ResendID, operator()); err != nil {
				return resends, refused, err
			}
			page = append(page, one)
		}
		if len(page) == 0 {
			continue
		}
		if err := db.Commit(ctx, b); err != nil {
			return resends, refused, fmt.Errorf("ask for %d webhooks once more, from event %s on (ask again if in doubt): %w", len(page), page[0].EventID, err)
		}
		resends = append(resends, page...)
		for _, one := range page {
			if !r.JSON {
				c.stdout.printf("%s of %s will be delivered once more: event %s, resend %s\n", one.Type, oneLine(one.ChargeID), one.EventID, one.ResendID)
			}
		}
	}
	return resends, refused, nil
}
