package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
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
	Resend webhooksResendCmd `cmd:"" help:"Resend webhooks, with the webhook-ids that they had." example:"webhooks resend ch_01a1fd336ed47bf6827f5db90a1e2454" progress:"recording resends"`
}

type webhooksRotateCmd struct {
	Merchant string `required:"" placeholder:"ID" help:"The merchant whose secret is replaced."`

	WebhookSecretFile []byte `type:"filecontent" placeholder:"PATH" help:"File that holds the new secret, as WEBHOOK_SECRET does: whsec_ and 24 to 64 bytes in base64. Without it one is created and printed once."`

	Overlap model.Duration `default:"24h" help:"How long the old secrets still sign beside the new one. 0s ends them at once."`

	secret string // that is given; "": one is made
}

const (
	shortestSecret = 24 // bytes, as Standard Webhooks asks for
	longestSecret  = 64
)

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
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(given, "whsec_"))
	if err != nil || webhook.CheckSecret(given) != nil || len(secret) < shortestSecret || len(secret) > longestSecret {
		return "", fmt.Errorf("--webhook-secret must be whsec_ and %d to %d bytes in base64, as openssl rand -base64 32 prints them", shortestSecret, longestSecret)
	}
	return given, nil
}

// rotated is the one thing that shows a whole secret.
type rotated struct {
	Whole string             `json:"secret,omitempty"` // that was made
	Data  []merchants.Secret `json:"data"`
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
	for _, s := range secrets {
		if s.Valid && s.Is(r.secret) {
			return fmt.Errorf("that secret signs already, with the fingerprint %s", s.Fingerprint)
		}
	}
	b := &pgx.Batch{}
	merchants.RotateSecret(b, secrets[0], r.secret, time.Duration(r.Overlap), operator())
	unknown := db.Commit(ctx, b)
	if unknown != nil {
		unknown = fmt.Errorf("rotate the webhook secret of %s: %w", r.Merchant, unknown)
		if groupcommit.OutcomeOf(unknown) != groupcommit.Unknown {
			return unknown
		}
		c.remark("the secret may have been stored: to rotate again is safe\n")
	}
	secrets, err = merchants.ListSecrets(ctx, db, r.Merchant)
	c.show(rotated{Whole: made, Data: secrets}, func(p io.Writer) {
		// No secret is shown, nor where an endpoint has its token.
		table(c.stderr, secrets, columns[merchants.Secret]{
			"MERCHANT\tENDPOINT\tFINGERPRINT\tSIGNS\tCREATED\tENDS\tBY", func(s merchants.Secret) []any {
				signs := map[bool]string{true: "yes", false: "no"}[s.Valid]
				return []any{s.Merchant, s.Origin, s.Fingerprint, signs, s.CreatedAt, s.EndsAt, s.CreatedBy}
			},
		})
		if made != "" {
			c.remark("the new secret is shown this once; no command shows it again\n")
			fmt.Fprintf(p, "%s\n", made)
		}
	})
	return errors.Join(unknown, err) // of the list: a secret that was made is printed without it too
}

type webhooksResendCmd struct {
	Names []string `arg:"" name:"id" help:"Id of an event, which is the webhook-id, or of a charge: all of its webhook events and those of its refunds."`
}

// resend is a webhook that will be delivered once more.
type resend struct {
	operate.WebhookEvent

	ResendID uuid.UUID `json:"resend_id"`
}

// Run returns when the resends are recorded; the workers deliver. A webhook that cannot be
// delivered again is named on stderr and does not keep the others from it; the exit code is then 1.
//
// If we die here: each resend is recorded, with its message, or not at all.
// The operator repeats the command, and the merchant knows the repeated webhooks by their ids.
// Test: TestScripts/resend.
func (r webhooksResendCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	outcomes, err := operate.FindWebhookEvents(ctx, db, r.Names)
	if err != nil {
		return err
	}
	var refused []string
	for _, name := range r.Names {
		if id, _ := uuid.Parse(name); !slices.ContainsFunc(outcomes, func(o operate.WebhookEvent) bool { return o.ChargeID == name || o.EventID == id }) {
			refused = append(refused, fmt.Sprintf("%q is neither a webhook event nor a charge that has one", name))
		}
	}
	resends := []resend{}
	for _, o := range outcomes {
		if refusal := o.Refusal(); refusal != nil {
			refused = append(refused, fmt.Sprintf("%s of %s, event %s: %s", o.Type, oneLine(o.ChargeID), o.EventID, refusal))
			continue
		}
		one, b := resend{o, uuid.New()}, &pgx.Batch{}
		operate.Resend(b, o, one.ResendID, operator())
		if err = db.Commit(ctx, b); err != nil {
			err = fmt.Errorf("ask for the webhook of event %s once more (ask again if in doubt): %w", o.EventID, err)
			break
		}
		resends = append(resends, one)
	}
	for _, text := range refused {
		c.remark("left out: %s\n", text)
	}
	showList(c, resends, columns[resend]{"WEBHOOK\tCHARGE\tEVENT\tRESEND", func(r resend) []any { // what was recorded before a failure too
		return []any{r.Type, r.ChargeID, r.EventID, r.ResendID}
	}})
	if err == nil && len(refused) > 0 {
		err = errFound
	}
	return err
}
