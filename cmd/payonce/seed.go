package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/notify"
	"github.com/payonce/payonce/internal/postgres"
)

type seedCmd struct {
	Merchant       string           `required:"" help:"The merchant's id: lower case letters, digits, - and _."`
	APIKey         string           `help:"The merchant's API key; without it one is made and printed once."`
	WebhookURL     string           `help:"Where the merchant is told about outcomes."`
	WebhookSecret  string           `help:"Standard Webhooks secret, whsec_…"`
	FeeBasisPoints int64            `default:"300" help:"Fee in hundredths of a percent of a captured amount."`
	FeeFixed       map[string]int64 `help:"Fee per captured charge, as CURRENCY=minor units." placeholder:"USD=30"`
	SKU            map[string]int64 `help:"An article and how many there are, as sku=quantity. Repeatable." placeholder:"tshirt=1000"`
	JSON           bool             `name:"json" help:"Print the merchant, and the key if one was made, as JSON."`
}

// Run registers everything in one commit. What exists already stays: seeding
// again never resets stock, and revives no key.
func (s seedCmd) Run(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	db, err := open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return s.seed(ctx, os.Stdout, db)
}

func (s seedCmd) seed(ctx context.Context, w io.Writer, db *postgres.DB) error {
	key, made := s.APIKey, ""
	if key == "" {
		made = merchants.NewKey()
		key = made
	}
	b := &pgx.Batch{}
	merchant := merchants.Merchant{ID: s.Merchant, FeeBasisPoints: s.FeeBasisPoints, FeeFixed: s.FeeFixed}
	if err := merchants.Register(b, merchant, merchants.Webhook{URL: s.WebhookURL, Secret: s.WebhookSecret}); err != nil {
		return err
	}
	merchants.AddKey(b, s.Merchant, key)
	for _, sku := range slices.Sorted(maps.Keys(s.SKU)) {
		fulfillment.Supply(b, s.Merchant, sku, s.SKU[sku])
	}
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("seed %s: %w", s.Merchant, err)
	}
	if err := s.opens(ctx, db, key); err != nil {
		return err
	}
	switch {
	case s.JSON:
		return printJSON(w, seeded{Merchant: s.Merchant, Prefix: merchants.Prefix(key), MadeKey: made})
	case made != "":
		fmt.Fprintln(w, made)
	}
	return nil
}

// seeded is what a program is told. A key that was given is not repeated.
type seeded struct {
	Merchant string `json:"merchant"`
	Prefix   string `json:"prefix"`
	MadeKey  string `json:"key,omitempty"`
}

// opens looks that the key does what a seeded one does. One that was there
// before may not.
func (s seedCmd) opens(ctx context.Context, db *postgres.DB, key string) error {
	owner, err := merchants.Authenticate(ctx, db, key)
	switch {
	case errors.Is(err, merchants.ErrUnauthorized):
		return errors.New("the API key was revoked or has expired: give another one")
	case err != nil:
		return err
	case owner.ID != s.Merchant:
		return errors.New("the API key belongs to another merchant: give another one")
	case len(owner.Scopes) < len(merchants.Scopes()):
		return errors.New("the API key is there with fewer scopes than a seeded one has: give another one")
	}
	return nil
}

const shortestKey = 8

func (s seedCmd) check() error {
	switch {
	case !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`).MatchString(s.Merchant):
		return fmt.Errorf("--merchant is %q: use 1 to 63 lower case letters, digits, - and _", s.Merchant)
	case s.APIKey != "" && (!strings.HasPrefix(s.APIKey, "sk_") || len(s.APIKey) < shortestKey):
		return errors.New("--api-key must begin with sk_ and have at least 8 characters")
	case (s.WebhookURL == "") != (s.WebhookSecret == ""):
		return errors.New("--webhook-url and --webhook-secret belong together")
	case s.FeeBasisPoints < 0 || s.FeeBasisPoints > 10_000:
		return errors.New("--fee-basis-points must be between 0 and 10000")
	}
	for sku, quantity := range s.SKU {
		if sku == "" || quantity < 0 {
			return fmt.Errorf("--sku %s=%d: a quantity is not negative", sku, quantity)
		}
	}
	if s.WebhookURL == "" {
		return nil
	}
	if err := notify.CheckURL(s.WebhookURL); err != nil {
		return fmt.Errorf("--webhook-url: %w", err)
	}
	encoded, ok := strings.CutPrefix(s.WebhookSecret, "whsec_")
	if _, err := base64.StdEncoding.DecodeString(encoded); !ok || err != nil {
		return errors.New("--webhook-secret must be whsec_ and base64")
	}
	return nil
}
