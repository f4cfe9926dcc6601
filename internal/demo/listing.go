package demo

import (
	"context"
	"net/url"
	"time"
)

// list counts the charges of the plan's orders in the service's list, which
// lags behind: it looks again until every order is there or patience ends.
func (t *traffic) list(ctx context.Context, plan Plan, patience time.Duration) (map[string]int, error) {
	ours := make(map[string]bool, len(plan.Charges))
	for _, charge := range plan.Charges {
		ours[charge.Order] = true
	}
	looking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		listed := map[string]int{}
		err := t.pages(looking, func(order string) {
			if ours[order] {
				listed[order]++
			}
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || len(listed) == len(ours) || wait(looking, 250*time.Millisecond) != nil {
			return listed, nil
		}
	}
}

// pages reads the list of charges to its end.
func (t *traffic) pages(ctx context.Context, see func(order string)) error {
	query := url.Values{"limit": {"100"}}
	for {
		var page struct {
			Data []struct {
				ID    string `json:"id"`
				Order string `json:"order_id"`
			} `json:"data"`
			More bool `json:"has_more"`
		}
		if err := t.client.get(ctx, "/v1/charges?"+query.Encode(), &page); err != nil {
			return err
		}
		for _, charge := range page.Data {
			see(charge.Order)
			query.Set("starting_after", charge.ID)
		}
		if !page.More || len(page.Data) == 0 {
			return nil
		}
	}
}
