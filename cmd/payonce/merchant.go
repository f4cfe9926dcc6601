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
	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/webhook"
)

type seedCmd struct {
	Merchant      string `required:"" help:"The merchant's id: lower case letters, digits, - and _."`
	APIKey        string `placeholder:"sk_test_…" help:"The merchant's test key, with all scopes. Without it a live key with all scopes is generated and printed once, if the merchant has no key yet."`
	WebhookURL    string `help:"Where the merchant receives webhooks."`
	WebhookSecret string `placeholder:"whsec_…" help:"Standard Webhooks secret of a merchant that has none; payonce webhooks rotate replaces it. Only beside a test key: give others by a file or in WEBHOOK_SECRET."`

	WebhookSecretFile []byte `type:"filecontent" placeholder:"PATH" help:"File that holds the webhook secret."`

	FeeBasisPoints int64            `default:"300" help:"Fee in hundredths of a percent of a captured amount."`
	FeeFixed       map[string]int64 `help:"Fee per captured charge, as CURRENCY=minor units." placeholder:"USD=30"`
	SKU            map[string]int64 `help:"An article and how many there are, as sku=quantity. Repeatable. One that exists stays as it is: payonce stock add changes it." placeholder:"tshirt=1000"`

	OneChargePerOrder *bool `negatable:"" help:"Whether an order has at most one charge that is pending or has succeeded: a further one is refused. It counts for charges that are accepted from then on."`
}

// AfterApply reads the webhook secret, and refuses values that the tables would refuse too.
func (s *seedCmd) AfterApply() (err error) {
	s.WebhookSecret, err = webhookSecret(s.WebhookSecret, s.WebhookSecretFile, strings.HasPrefix(s.APIKey, testKey))
	switch {
	case err != nil:
		return err
	case s.WebhookURL == "" && s.WebhookSecret != "":
		return errors.New("--webhook-secret needs --webhook-url; payonce webhooks rotate replaces the secret alone")
	case s.WebhookURL != "" && webhook.CheckURL(s.WebhookURL) != nil:
		return fmt.Errorf("--webhook-url: %w", webhook.CheckURL(s.WebhookURL))
	case !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`).MatchString(s.Merchant):
		return fmt.Errorf("--merchant is %q: use 1 to 63 lower case letters, digits, - and _", s.Merchant)
	}
	for code, fee := range s.FeeFixed {
		if code == "" || !currency.IsValid(code) || fee < 0 || fee > domain.MaxAmount { // the library takes "" for valid
			return fmt.Errorf("--fee-fixed %s=%d: use an ISO 4217 code in upper case, and a fee between 0 and %d minor units", code, fee, domain.MaxAmount)
		}
	}
	for sku, quantity := range s.SKU {
		if sku == "" || quantity < 0 {
			return fmt.Errorf("--sku %s=%d: an article has a name, and a quantity of 0 or more", sku, quantity)
		}
	}
	return checkGiven(s.APIKey)
}

// Run registers everything in one commit. What exists already stays: seeding again never resets stock,
// revives no key and replaces no webhook secret.
func (s *seedCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	keys, err := merchants.FindKeys(ctx, db, s.Merchant, nil)
	if err != nil {
		return err
	}
	key, made := s.APIKey, ""
	if key == "" && len(keys) == 0 {
		made = merchants.NewKey()
		key = made
	}
	if _, err := checkStored(ctx, db, s.Merchant, key, merchants.Scopes()); err != nil { // before anything is written
		return err
	}
	if err := s.checkSecret(ctx, db); err != nil {
		return err
	}
	kept, err := s.register(ctx, db, key)
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		c.remark("%s was there already, and keeps its fees and its keys\n", s.Merchant)
	}
	for _, sku := range kept {
		c.remark("%s has %s already, and it stays as it is: payonce stock add changes it\n", s.Merchant, oneLine(sku))
	}
	_, err = checkStored(ctx, db, s.Merchant, key, merchants.Scopes())
	keys, unread := merchants.FindKeys(ctx, db, s.Merchant, nil)
	showSecret(c, made, keys, keyColumns)
	return errors.Join(err, unread, s.checkSecret(ctx, db))
}

// checkSecret refuses a webhook secret beside another one: before the commit, and after it for one that
// another command stored meanwhile.
func (s *seedCmd) checkSecret(ctx context.Context, db *postgres.DB) error {
	secrets, err := merchants.ListSecrets(ctx, db, s.Merchant)
	if err == nil && s.WebhookSecret != "" && len(secrets) > 0 && !secrets[0].Is(s.WebhookSecret) {
		err = fmt.Errorf("%s has another webhook secret, with the fingerprint %s: payonce webhooks rotate replaces it", s.Merchant, secrets[0].Fingerprint)
	}
	return err
}

// register commits the merchant with its key and stock, and returns the articles that exist.
func (s *seedCmd) register(ctx context.Context, db *postgres.DB, key string) (kept []string, err error) {
	b := &pgx.Batch{}
	merchant := merchants.Merchant{ID: s.Merchant, FeeBasisPoints: s.FeeBasisPoints, FeeFixed: s.FeeFixed}
	merchants.Register(b, merchant, merchants.Webhook{URL: s.WebhookURL, Secret: s.WebhookSecret}, s.OneChargePerOrder)
	if key != "" {
		merchants.IssueKey(b, key, merchants.Grant{Merchant: s.Merchant, Scopes: merchants.Scopes()})
	}
	for _, sku := range slices.Sorted(maps.Keys(s.SKU)) {
		operate.Supply(b, s.Merchant, sku, s.SKU[sku]).Exec(func(made pgconn.CommandTag) error {
			if made.RowsAffected() == 0 {
				kept = append(kept, sku)
			}
			return nil
		})
	}
	err = db.Commit(ctx, b)
	if groupcommit.Constraint(err) == "merchants_webhook_secret_exists" {
		return nil, errors.New("--webhook-url needs --webhook-secret: the merchant has no secret yet")
	}
	if err != nil {
		return nil, fmt.Errorf("seed %s: %w", s.Merchant, err)
	}
	return kept, nil
}

type stockCmd struct {
	List stockListCmd `cmd:"" help:"List articles and their units. They are on hand, of those reserved by charges or available, or sold." example:"stock list --merchant acme"`
	Add  stockAddCmd  `cmd:"" help:"Add units of an article, or take some away." example:"stock add --merchant acme --sku mug --quantity 9 --reason new"`
}

type stockListCmd struct{ merchantFlag }

func (l stockListCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	stock, err := operate.ListStock(ctx, db, l.Merchant, "")
	return showList(c, stock, err, stockColumns)
}

const stockColumns = "merchant sku on_hand reserved available sold"

type stockAddCmd struct {
	Merchant string `required:"" placeholder:"ID" help:"The merchant whose article it is."`
	SKU      string `name:"sku" required:"" placeholder:"SKU" help:"The article."`
	Quantity int64  `required:"" placeholder:"N" help:"How many units; below zero, as in --quantity=-3, for units that are gone."`
	Reason   string `required:"" placeholder:"TEXT" help:"Why: it is kept with the change."`
	ID       string `name:"id" placeholder:"ID" help:"Your name of this change, such as the number of a delivery note. Of an article, a change with this id is made once, however often the command is repeated."`
}

// AfterApply refuses what would be recorded in another form, or not at all.
func (a stockAddCmd) AfterApply() error {
	if a.Quantity == 0 || strings.TrimSpace(a.Reason) == "" || len(a.ID) > 255 {
		return errors.New("give a --quantity that is not 0, a --reason that says why, and an --id of at most 255 bytes")
	}
	return nil
}

// Run adds once if the change has an id, and prints the article.
//
// If we die here: the change and its record are stored, or neither is. A repeated command with
// the id finds the record. Test: TestScripts/stock.
func (a stockAddCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	b, changed := &pgx.Batch{}, []operate.Stock{}
	audit.Explain(b, a.Reason, a.ID)
	operate.AddStock(b, a.Merchant, a.SKU, a.Quantity, &changed)
	err := db.Commit(ctx, b)
	switch groupcommit.Constraint(err) {
	case "operator_actions_one_supply":
		changed, err = a.repeated(ctx, c, db)
	case "stock_available_not_negative":
		err = errors.New("charges have reserved more than the change would leave on hand: payonce stock list shows how many")
	}
	if err != nil {
		return fmt.Errorf("change the stock of %s: %w", a.Merchant, err)
	}
	if len(changed) == 0 {
		return fmt.Errorf("%s has no article %q: payonce stock list shows those there are, payonce seed --sku makes one", a.Merchant, a.SKU)
	}
	showOne(c, changed[0], stockColumns)
	return nil
}

// repeated returns the article as it is, if the change that has the id was the same.
func (a stockAddCmd) repeated(ctx context.Context, c *console, db *postgres.DB) ([]operate.Stock, error) {
	made, err := audit.FindSupply(ctx, db, a.Merchant, a.SKU, a.ID)
	if err == nil && made != a.Quantity {
		err = fmt.Errorf("--id %s is that of a change by %+d: give another one", a.ID, made)
	}
	if err != nil {
		return nil, err
	}
	c.remark("%s was added before, and nothing is added now\n", oneLine(a.ID))
	return operate.ListStock(ctx, db, a.Merchant, a.SKU)
}
