package main

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

type stockCmd struct {
	List stockListCmd `cmd:"" help:"List articles: what is on hand, what charges have reserved of it, what is available, what was sold."`
	Add  stockAddCmd  `cmd:"" help:"Add units to what is on hand of an article, or take some away."`
}

// mostUnits is the largest quantity that a command takes.
const mostUnits = 1_000_000_000_000

type stockListCmd struct {
	Merchant string `placeholder:"ID" help:"List only the articles of this merchant."`
	JSON     bool   `name:"json" help:"Print the articles as JSON."`
}

func (l stockListCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	stock, err := fulfillment.ListStock(ctx, db, l.Merchant, "")
	if len(stock) == 0 && err == nil {
		err = requireMerchant(ctx, db, l.Merchant)
	}
	if err == nil {
		printStock(c, l.JSON, stock)
	}
	return err
}

func printStock(c *console, asJSON bool, stock []fulfillment.Stock) {
	printList(&c.stdout, asJSON, stock, "MERCHANT\tSKU\tON HAND\tRESERVED\tAVAILABLE\tSOLD", func(s fulfillment.Stock) []any {
		return []any{s.Merchant, s.SKU, s.OnHand, s.Reserved, s.Available, s.Sold}
	})
}

type stockAddCmd struct {
	Merchant string `required:"" placeholder:"ID" help:"The merchant whose article it is."`
	SKU      string `name:"sku" required:"" placeholder:"SKU" help:"The article."`
	Quantity int64  `required:"" placeholder:"N" help:"How many units; below zero, as in --quantity=-3, for units that are gone."`
	Reason   string `required:"" placeholder:"TEXT" help:"Why: it is kept with the change."`
	ID       string `name:"id" placeholder:"ID" help:"Your name of this change, such as the number of a delivery note. Of an article, a change with this id is made once, however often the command is repeated."`
	JSON     bool   `name:"json" help:"Print the article as JSON."`
}

const longestID = 255 // bytes, as the records keep

func (a stockAddCmd) check() error {
	switch {
	case a.Quantity == 0 || max(a.Quantity, -a.Quantity) > mostUnits:
		return fmt.Errorf("--quantity is %d: give 1 to %d, or below zero to take units away", a.Quantity, mostUnits)
	case len(a.ID) > longestID:
		return fmt.Errorf("--id has %d bytes: give at most %d", len(a.ID), longestID)
	case strings.TrimSpace(a.Reason) == "" || utf8.RuneCountInString(a.Reason) > longestReason:
		return fmt.Errorf("--reason must say why, in at most %d characters", longestReason)
	}
	return nil
}

// run adds once if the change has an id, and prints the article.
//
// If we die here: the change and its record are stored, or neither is. A repeated command with
// the id finds the record. Test: TestStock_addsOnceUnderAnID.
func (a stockAddCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	b, changed := &pgx.Batch{}, []fulfillment.Stock{}
	audit.Explain(b, a.Reason, a.ID)
	fulfillment.AddStock(b, a.Merchant, a.SKU, a.Quantity, &changed)
	err := db.Commit(ctx, b)
	switch constraint := groupcommit.Constraint(err); {
	case constraint == "operator_actions_one_supply", constraint == "stock_available_not_negative":
		changed, err = a.refused(ctx, c, db, constraint)
	case groupcommit.OutcomeOf(err) == groupcommit.Unknown:
		err = fmt.Errorf("it may have been stored, payonce actions tells: %w", err)
	case err != nil:
		err = fmt.Errorf("change the stock of %s: %w", a.Merchant, err)
	}
	if err != nil {
		return err
	}
	if len(changed) == 0 {
		return fmt.Errorf("%s has no article %q: payonce stock list shows those there are, payonce seed --sku makes one", a.Merchant, a.SKU)
	}
	if a.JSON {
		c.stdout.json(changed[0])
	} else {
		printStock(c, false, changed)
	}
	return nil
}

// refused returns the article as it is if the change was made before, or why it is not made.
func (a stockAddCmd) refused(ctx context.Context, c *console, db *postgres.DB, constraint string) ([]fulfillment.Stock, error) {
	stock, err := fulfillment.ListStock(ctx, db, a.Merchant, a.SKU)
	if err != nil || len(stock) == 0 {
		return nil, err
	}
	if constraint == "stock_available_not_negative" {
		return nil, fmt.Errorf("charges have reserved %d of the %d units of %q on hand: the change must leave as many", stock[0].Reserved, stock[0].OnHand, a.SKU)
	}
	made, err := audit.FindSupply(ctx, db, a.Merchant, a.SKU, a.ID)
	switch {
	case err != nil:
		return nil, err
	case made != a.Quantity:
		return nil, fmt.Errorf("--id %s is that of a change by %+d: give another one", a.ID, made)
	}
	c.stderr.printf("%s was added before, and nothing is added now\n", oneLine(a.ID))
	return stock, nil
}
