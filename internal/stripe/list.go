package stripe

import (
	"context"
	"errors"
	"fmt"
	"iter"

	stripego "github.com/stripe/stripe-go/v85"
)

// pageSize is the largest that Stripe allows.
const pageSize = 100

// refundsOfIntent is more refunds than any intent has: payonce makes a hundred at
// most, and some are made by hand.
const refundsOfIntent = 5000

type listed interface{ id() string }

// pages reads a list page by page. A list of more than most objects is refused; 0
// means any number. stripe-go's own iterator takes any JSON object for an empty
// list, and does not end if an empty page says that there is more or if a cache
// returns one page for every cursor.
func pages[S any, T listed](
	ctx context.Context,
	c *Client,
	call string,
	most int,
	read func(S) (T, error),
	list func(context.Context, stripego.ListParams) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		seen := make(map[string]bool)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; {
			items, err := request(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
				l := list(ctx, params)
				return l, l.Err()
			}, func(l *stripego.V1List[S]) ([]T, error) {
				more = l.Meta().HasMore
				return page(l, seen, most, read)
			})
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", call, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if more {
				params.StartingAfter = stripego.String(items[len(items)-1].id())
			}
		}
	}
}

// page returns the objects of a page and adds them to seen. It refuses a page that
// brings the end of the list no nearer.
func page[S any, T listed](l *stripego.V1List[S], seen map[string]bool, most int, read func(S) (T, error)) ([]T, error) {
	if l.Data() == nil {
		return nil, errors.New("the answer holds no list")
	}
	if len(l.Data()) == 0 && l.Meta().HasMore {
		return nil, errors.New("the answer is an empty page that says there is more")
	}
	items := make([]T, 0, len(l.Data()))
	for _, sent := range l.Data() {
		item, err := read(sent)
		if err != nil {
			return nil, err
		}
		if seen[item.id()] {
			return nil, fmt.Errorf("the list repeats itself: it has %s twice", item.id())
		}
		seen[item.id()] = true
		items = append(items, item)
	}
	if most > 0 && len(seen) > most {
		return nil, fmt.Errorf("the list does not end after %d", most)
	}
	return items, nil
}
