package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

type actionsCmd struct {
	Merchant string    `placeholder:"ID" help:"List only actions about this merchant."`
	Since    time.Time `placeholder:"2026-11-21T08:00:00Z" help:"List only actions of this time or later (RFC 3339)."`
	Limit    int       `default:"100" help:"Number of actions."`
	JSON     bool      `name:"json" help:"Print the actions as JSON."`
}

func (a actionsCmd) check() error {
	if a.Limit < 1 {
		return errors.New("--limit must be 1 or more")
	}
	return nil
}

func (a actionsCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	actions, err := audit.ListActions(ctx, db, a.Merchant, a.Since, a.Limit)
	if len(actions) == 0 && err == nil {
		err = requireMerchant(ctx, db, a.Merchant)
	}
	if err != nil {
		return err
	}
	printList(&c.stdout, a.JSON, actions, "WHEN\tWHO\tLOGIN\tACTION\tSUBJECT\tMERCHANT\tBEFORE\tAFTER", func(a audit.Action) []any {
		return []any{
			a.At, a.Actor, a.Login, a.Action, a.Subject, cmp.Or(a.Merchant, "-"), string(a.Before), string(a.After),
		}
	})
	return nil
}

// reasonFlag is the reason of an action.
type reasonFlag struct {
	Reason string `placeholder:"TEXT" help:"Why, for the list of operators' actions."`
}

func (r reasonFlag) checkLength() error {
	if utf8.RuneCountInString(r.Reason) > longestReason {
		return fmt.Errorf("--reason has more than %d characters", longestReason)
	}
	return nil
}

// options let the trigger that records the action know the reason.
func (r reasonFlag) options() postgres.Options {
	return postgres.Options{Settings: map[string]string{"payonce.reason": r.Reason}}
}
