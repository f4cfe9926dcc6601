package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/bojanz/currency"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/webhook"
)

type seedCmd struct {
	Merchant      string `required:"" help:"The merchant's id: lower case letters, digits, - and _."`
	APIKey        string `placeholder:"sk_test_…" help:"The merchant's test key, with all scopes. Without it a live key with all scopes is generated and printed once, if the merchant has no key yet."`
	WebhookURL    string `help:"Where the merchant receives webhooks."`
	WebhookSecret string `placeholder:"whsec_…" help:"Standard Webhooks secret; a new one replaces the newest, as payonce webhooks rotate does. Only beside a test key: give others by a file or in WEBHOOK_SECRET."`

	WebhookSecretFile []byte `type:"filecontent" placeholder:"PATH" help:"File that holds the webhook secret."`

	FeeBasisPoints int64            `default:"300" help:"Fee in hundredths of a percent of a captured amount."`
	FeeFixed       map[string]int64 `help:"Fee per captured charge, as CURRENCY=minor units." placeholder:"USD=30"`
	SKU            map[string]int64 `help:"An article and how many there are, as sku=quantity. Repeatable. One that exists stays as it is: payonce stock add changes it." placeholder:"tshirt=1000"`

	OneChargePerOrder *bool `negatable:"" help:"Whether an order has at most one charge that is pending or has succeeded: a further one is refused. It counts for charges that are accepted from then on."`

	JSON bool `name:"json" help:"Print the merchant, and the key if one was created, as JSON."`
}

// run registers everything in one commit. What exists already stays: seeding
// again never resets stock, revives no key and brings no old webhook secret back.
func (s seedCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	key, made, err := s.key(ctx, c, db)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	merchant := merchants.Merchant{ID: s.Merchant, FeeBasisPoints: s.FeeBasisPoints, FeeFixed: s.FeeFixed}
	merchants.Register(b, merchant, merchants.Webhook{URL: s.WebhookURL, Secret: s.WebhookSecret})
	if s.OneChargePerOrder != nil {
		merchants.SetOneChargePerOrder(b, s.Merchant, *s.OneChargePerOrder)
	}
	rotates, err := s.rotates(ctx, b, db)
	if err != nil {
		return err
	}
	if key != "" {
		merchants.AddKey(b, s.Merchant, key)
	}
	var kept []string
	for _, sku := range slices.Sorted(maps.Keys(s.SKU)) {
		fulfillment.Supply(b, s.Merchant, sku, s.SKU[sku]).Exec(func(made pgconn.CommandTag) error {
			if made.RowsAffected() == 0 {
				kept = append(kept, sku)
			}
			return nil
		})
	}
	err = db.Commit(ctx, b)
	switch {
	case groupcommit.Constraint(err) == "webhook_secrets_pkey":
		return errOtherSecret
	case groupcommit.Constraint(err) == "merchants_webhook_secret_exists":
		return errors.New("--webhook-url needs --webhook-secret: the merchant has no secret yet")
	case err != nil:
		return fmt.Errorf("seed %s: %w", s.Merchant, err)
	}
	for _, sku := range kept {
		c.stderr.printf("%s has %s already, and it stays as it is: payonce stock add changes it\n", s.Merchant, oneLine(sku))
	}
	if key != "" {
		registered, err := s.opens(ctx, db, key)
		if err != nil {
			return err
		}
		c.stderr.printf("%s", s.keptFees(registered))
	}
	if err := s.signs(ctx, db); err != nil {
		return err
	}
	if s.WebhookURL != "" && !webhook.IsPublic(s.WebhookURL) {
		c.stderr.printf("the webhook's target is not https at a public address: workers deliver there only if WEBHOOK_ALLOW_CIDRS has its address\n")
	}
	if rotates {
		c.stderr.printf("%s has another webhook secret: for %s deliveries are signed by both, then by the new one alone\n", s.Merchant, overlap)
	}
	s.print(c, key, made)
	return nil
}

// print shows a key that was made, this once.
func (s seedCmd) print(c *console, key, made string) {
	switch {
	case s.JSON:
		c.stdout.json(seeded{Merchant: s.Merchant, Prefix: merchants.Prefix(key), MadeKey: made})
	case made != "":
		printMade(c, made, merchants.Key{Prefix: merchants.Prefix(made), Merchant: s.Merchant, Scopes: merchants.Scopes()}, false)
	}
}

// key is the key that is seeded: the one given or, for a merchant that has no key, one that is
// made. It is "" for none.
func (s seedCmd) key(ctx context.Context, c *console, db *postgres.DB) (key, made string, err error) {
	if s.APIKey == "" {
		keys, err := merchants.ListKeys(ctx, db, s.Merchant)
		if err != nil {
			return "", "", err
		}
		if len(keys) > 0 {
			c.stderr.printf("%s has a key already: it gets no other, and keeps its fees (payonce keys create makes a key)\n", s.Merchant)
			return "", "", nil
		}
		made = merchants.NewKey()
		return made, made, nil
	}
	// Before anything is written. A key that is not there yet opens nothing.
	if owner, err := merchants.Authenticate(ctx, db, s.APIKey); err == nil && owner.ID != s.Merchant {
		return "", "", errOthersKey
	}
	return s.APIKey, "", nil
}

// seeded is printed as JSON. A key that was given is not repeated.
type seeded struct {
	Merchant string `json:"merchant"`
	Prefix   string `json:"prefix,omitempty"`
	MadeKey  string `json:"key,omitempty"`
}

var errOtherSecret = errors.New("another command set another webhook secret at this moment, and yours was not taken: payonce actions shows it")

// rotates queues the replacement of the merchant's webhook secret by one that it
// never had, which then signs beside the old one for a while. So a merchant whose
// side still has the old one is not locked out. One that it had before is
// refused: a script that is run again must not undo a rotation.
func (s seedCmd) rotates(ctx context.Context, b *pgx.Batch, db *postgres.DB) (bool, error) {
	if s.WebhookSecret == "" {
		return false, nil
	}
	secrets, err := merchants.ListSecrets(ctx, db, s.Merchant)
	if err != nil || len(secrets) == 0 || secrets[0].Is(s.WebhookSecret) {
		return false, err
	}
	for _, old := range secrets[1:] {
		if old.Is(s.WebhookSecret) {
			return false, fmt.Errorf("--webhook-secret was replaced by another one: leave it out, give the newest (fingerprint %s), or bring it back with payonce webhooks rotate", secrets[0].Fingerprint)
		}
	}
	merchants.RotateSecret(b, secrets[0], s.WebhookSecret, overlap, operator())
	return true, nil
}

// signs checks that the webhook secret is the newest.
func (s seedCmd) signs(ctx context.Context, db *postgres.DB) error {
	if s.WebhookSecret == "" {
		return nil
	}
	secrets, err := merchants.ListSecrets(ctx, db, s.Merchant)
	if err != nil {
		return err
	}
	if len(secrets) == 0 || !secrets[0].Is(s.WebhookSecret) {
		return errOtherSecret
	}
	return nil
}

var errOthersKey = errors.New("the API key belongs to another merchant: give another one")

// opens checks that the key has the rights of a seeded one, and returns its merchant. A key
// that existed before may not.
func (s seedCmd) opens(ctx context.Context, db *postgres.DB, key string) (merchants.Merchant, error) {
	owner, err := merchants.Authenticate(ctx, db, key)
	switch {
	case errors.Is(err, merchants.ErrUnauthorized):
		return owner, errors.New("the API key was revoked or has expired: give another one")
	case err != nil:
		return owner, err
	case owner.ID != s.Merchant:
		return owner, errOthersKey
	case len(owner.Scopes) < len(merchants.Scopes()):
		return owner, errors.New("the API key is there with fewer scopes than a seeded one has: give another one")
	}
	return owner, nil
}

// keptFees is a line if the merchant existed before with other fees, else "".
func (s seedCmd) keptFees(m merchants.Merchant) string {
	if m.FeeBasisPoints == s.FeeBasisPoints && maps.Equal(m.FeeFixed, s.FeeFixed) {
		return ""
	}
	fees := []string{fmt.Sprintf("%d basis points", m.FeeBasisPoints)}
	for _, code := range slices.Sorted(maps.Keys(m.FeeFixed)) {
		fees = append(fees, fmt.Sprintf("%s=%d", code, m.FeeFixed[code]))
	}
	return fmt.Sprintf("%s was there before and keeps its fees: %s\n", m.ID, strings.Join(fees, ", "))
}

// AfterApply reads the webhook secret.
func (s *seedCmd) AfterApply() (err error) {
	s.WebhookSecret, err = webhookSecret(s.WebhookSecret, s.WebhookSecretFile, strings.HasPrefix(s.APIKey, testKey))
	return err
}

func (s seedCmd) check() error {
	switch {
	case !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`).MatchString(s.Merchant):
		return fmt.Errorf("--merchant is %q: use 1 to 63 lower case letters, digits, - and _", s.Merchant)
	case checkGiven(s.APIKey) != nil:
		return checkGiven(s.APIKey)
	case s.WebhookURL == "" && s.WebhookSecret != "":
		return errors.New("--webhook-secret needs --webhook-url; payonce webhooks rotate replaces the secret alone")
	case s.FeeBasisPoints < 0 || s.FeeBasisPoints > 10_000:
		return errors.New("--fee-basis-points must be between 0 and 10000")
	}
	for code, fee := range s.FeeFixed {
		if code == "" || !currency.IsValid(code) { // the library takes "" for valid
			return fmt.Errorf("--fee-fixed %s=%d: use an ISO 4217 code in upper case, USD for example", code, fee)
		}
		if fee < 0 || fee > domain.MaxAmount {
			return fmt.Errorf("--fee-fixed %s=%d: a fee is between 0 and %d minor units", code, fee, domain.MaxAmount)
		}
	}
	for sku, quantity := range s.SKU {
		if sku == "" {
			return fmt.Errorf("--sku =%d: an article has a name, tshirt=1000 for example", quantity)
		}
		if quantity < 0 || quantity > mostUnits {
			return fmt.Errorf("--sku %s=%d: a quantity is between 0 and %d", sku, quantity, mostUnits)
		}
	}
	if s.WebhookURL == "" {
		return nil
	}
	if err := webhook.CheckURL(s.WebhookURL); err != nil {
		return fmt.Errorf("--webhook-url: %w", err)
	}
	return checkSecret(s.WebhookSecret)
}
