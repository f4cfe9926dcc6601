package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

type stockCmd struct {
	List stockListCmd `cmd:"" help:"List articles: what is on hand, what charges have reserved of it, what is available, what was sold."`
	Show stockShowCmd `cmd:"" help:"Show an article, and each change of what was supplied of it: who, when, why."`
	Add  stockAddCmd  `cmd:"" help:"Add units to what is on hand of an article, or take some away."`
	Set  stockSetCmd  `cmd:"" help:"Set what is on hand of an article, as after a count."`
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

// ArticleFlags are the flags that every command about one article has.
type ArticleFlags struct {
	Merchant string `required:"" placeholder:"ID" help:"The merchant whose article it is."`
	SKU      string `name:"sku" required:"" placeholder:"SKU" help:"The article."`
	JSON     bool   `name:"json" help:"Print the article as JSON."`
}

func (a ArticleFlags) unknown() error {
	return fmt.Errorf("%s has no article %q: payonce stock list shows those there are, payonce seed --sku makes one", a.Merchant, a.SKU)
}

func (a ArticleFlags) read(ctx context.Context, db *postgres.DB) (fulfillment.Stock, error) {
	stock, err := fulfillment.ListStock(ctx, db, a.Merchant, a.SKU)
	if err == nil && len(stock) == 0 {
		err = a.unknown()
	}
	if err != nil {
		return fulfillment.Stock{}, err
	}
	return stock[0], nil
}

type stockShowCmd struct{ ArticleFlags }

// explainedStock is an article with each change of what was supplied.
type explainedStock struct {
	fulfillment.Stock

	Supplies []audit.Supply `json:"supplies"`
}

func (s stockShowCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	stock, err := s.read(ctx, db)
	if err != nil {
		return err
	}
	supplies, err := audit.ListSupplies(ctx, db, s.Merchant, s.SKU)
	if err != nil {
		return err
	}
	if s.JSON {
		c.stdout.json(explainedStock{stock, supplies})
		return nil
	}
	printStock(c, false, []fulfillment.Stock{stock})
	c.stdout.printf("\n")
	printList(&c.stdout, false, supplies, "WHEN\tWHO\tLOGIN\tCHANGE\tSUPPLIED\tID\tREASON", func(s audit.Supply) []any {
		return []any{s.At, s.Actor, s.Login, fmt.Sprintf("%+d", s.Change), s.Supplied, s.ID, s.Reason}
	})
	return nil
}

type stockAddCmd struct {
	ArticleFlags

	Quantity int64  `required:"" placeholder:"N" help:"How many units; below zero, as in --quantity=-3, for units that are gone."`
	Reason   string `required:"" placeholder:"TEXT" help:"Why: it is kept with the change."`
	ID       string `name:"id" placeholder:"ID" help:"Your name of this change, such as the number of a delivery note. Of an article, a change with this id is made once, however often the command is repeated."`
}

func (a stockAddCmd) check() error {
	switch {
	case a.Quantity == 0 || max(a.Quantity, -a.Quantity) > mostUnits:
		return fmt.Errorf("--quantity is %d: give 1 to %d, or below zero to take units away", a.Quantity, mostUnits)
	case len(a.ID) > longestID:
		return fmt.Errorf("--id has %d bytes: give at most %d", len(a.ID), longestID)
	}
	return checkReason(a.Reason)
}

const longestID = 255 // bytes, as the records keep

func checkReason(reason string) error {
	if strings.TrimSpace(reason) == "" || utf8.RuneCountInString(reason) > longestReason {
		return fmt.Errorf("--reason must say why, in at most %d characters", longestReason)
	}
	return nil
}

// run adds once if the change has an id.
//
// If we die here: the change and its record are stored, or neither is. A repeated command with
// the id finds the record. Test: TestStock_addsOnceUnderAnID.
func (a stockAddCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	err := a.change(ctx, c, db, fulfillment.AddStock, a.Quantity, a.Reason, a.ID)
	if groupcommit.Constraint(err) != "operator_actions_one_supply" {
		return err
	}
	supplies, err := audit.ListSupplies(ctx, db, a.Merchant, a.SKU)
	if err != nil {
		return err
	}
	for _, s := range supplies {
		if s.ID == a.ID && s.Change != a.Quantity {
			return fmt.Errorf("--id %s is that of a change by %+d at %s: give another one", a.ID, s.Change, s.At.Format(time.RFC3339))
		}
	}
	c.stderr.printf("%s was added before, and nothing is added now\n", oneLine(a.ID))
	stock, err := a.read(ctx, db)
	if err == nil {
		a.print(c, stock)
	}
	return err
}

type stockSetCmd struct {
	ArticleFlags

	Quantity int64  `required:"" placeholder:"N" help:"How many units are on hand, those among them that charges have reserved."`
	Reason   string `required:"" placeholder:"TEXT" help:"Why: it is kept with the change."`
}

func (s stockSetCmd) check() error {
	if s.Quantity < 0 || s.Quantity > mostUnits {
		return fmt.Errorf("--quantity is %d: give 0 to %d", s.Quantity, mostUnits)
	}
	return checkReason(s.Reason)
}

// run sets what is on hand. Charges that reserve or sell at the same time come before or after
// it as a whole, because the statement locks the row.
func (s stockSetCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return s.change(ctx, c, db, fulfillment.SetStock, s.Quantity, s.Reason, "")
}

// change commits one change with its reason, and prints the article.
func (a ArticleFlags) change(
	ctx context.Context, c *console, db *postgres.DB, how fulfillment.StockChange, quantity int64, reason, id string,
) error {
	b, changed := &pgx.Batch{}, []fulfillment.Stock{}
	audit.Explain(b, reason, id)
	fulfillment.ChangeStock(b, how, a.Merchant, a.SKU, quantity, &changed)
	err := db.Commit(ctx, b)
	switch {
	case groupcommit.Constraint(err) == "stock_available_not_negative":
		stock, err := a.read(ctx, db)
		if err != nil {
			return err
		}
		return fmt.Errorf("charges have reserved %d of the %d units of %q on hand: the change must leave as many", stock.Reserved, stock.OnHand, a.SKU)
	case groupcommit.OutcomeOf(err) == groupcommit.Unknown:
		return fmt.Errorf("it may have been stored, payonce stock show tells: %w", err)
	case err != nil:
		return fmt.Errorf("change the stock of %s: %w", a.Merchant, err)
	case len(changed) == 0:
		return a.unknown()
	}
	a.print(c, changed[0])
	return nil
}

func (a ArticleFlags) print(c *console, stock fulfillment.Stock) {
	if a.JSON {
		c.stdout.json(stock)
		return
	}
	printStock(c, false, []fulfillment.Stock{stock})
}
