package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/notify"
)

type seedCmd struct {
	Merchant       string           `required:"" help:"The merchant's id: lower case letters, digits, - and _."`
	APIKey         string           `help:"The merchant's API key; without it one is made and printed once."`
	WebhookURL     string           `help:"Where the merchant is told about outcomes."`
	WebhookSecret  string           `help:"Standard Webhooks secret, whsec_…"`
	FeeBasisPoints int64            `default:"300" help:"Fee in hundredths of a percent of a captured amount."`
	FeeFixed       map[string]int64 `help:"Fee per captured charge, as CURRENCY=minor units." placeholder:"USD=30"`
	SKU            map[string]int64 `help:"An article and how many there are, as sku=quantity. Repeatable." placeholder:"tshirt=1000"`
}

// Run registers everything in one commit. What exists already stays: seeding
// again never resets stock.
func (s seedCmd) Run(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	key := s.APIKey
	if key == "" {
		key = merchants.NewKey()
	}
	db, err := open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
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
	owner, err := merchants.Authenticate(ctx, db, key)
	if err != nil {
		return err
	}
	if owner.ID != s.Merchant {
		return errors.New("the API key belongs to another merchant: give another one")
	}
	if s.APIKey == "" {
		fmt.Fprintln(os.Stdout, key)
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
