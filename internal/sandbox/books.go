package sandbox

import (
	"fmt"
	"net/http"
)

// selectBooks returns the body of GET /books. One statement reads one snapshot.
// Refunds that failed moved no money and are left out. One that was made outside has its own
// id for a reference.
const selectBooks = `
select json_build_object(
  'intents', coalesce((
    select json_agg(json_build_object(
      'reference', coalesce(i.metadata ->> 'charge_id', i.charge_id),
      'charge_reference', coalesce(i.metadata ->> 'charge_reference', ''), 'id', i.id, 'status', i.status,
      'amount', i.amount, 'currency', i.currency,
      'captures', (select count(*) from captures c where c.payment_intent = i.id)) order by i.position)
    from payment_intents i), '[]'),
  'captures', coalesce((
    select json_agg(json_build_object(
      'reference', coalesce(i.metadata ->> 'charge_id', i.charge_id),
      'charge_reference', coalesce(i.metadata ->> 'charge_reference', ''), 'payment_intent', c.payment_intent,
      'amount', c.amount, 'currency', c.currency) order by i.position, c.captured_at, c.id)
    from captures c
    join payment_intents i on i.id = c.payment_intent), '[]'),
  'refunds', coalesce((
    select json_agg(json_build_object(
      'reference', coalesce(metadata ->> 'refund_id', id), 'payment_intent', payment_intent,
      'amount', amount) order by position)
    from refunds
    where status = 'succeeded'), '[]'),
  'disputes', coalesce((
    select json_agg(json_build_object(
      'reference', d.id, 'payment_intent', d.payment_intent, 'amount', d.amount, 'status', d.status) order by d.position)
    from disputes d), '[]'),
  'notifications', coalesce((
    select json_agg(json_build_object(
      'webhook_id', e.webhook_id, 'reference', e.reference, 'type', e.type,
      'deliveries', (select count(*) from shop_deliveries d where d.webhook_id = e.webhook_id),
      'effects', e.effects) order by e.position)
    from (
      select position, webhook_id, reference, type, count(*) over (partition by webhook_id) as effects
      from shop_effects) e), '[]'),
  'requests', (select count(*) from requests),
  'duplicates_suppressed', (select count(replay_of) from requests))`

func (s *Sandbox) getBooks(r *http.Request) (answer, error) {
	if err := s.settle(r.Context()); err != nil {
		return answer{}, err
	}
	a := answer{status: http.StatusOK}
	if err := s.pool.QueryRow(r.Context(), selectBooks).Scan(&a.body); err != nil {
		return answer{}, fmt.Errorf("read the records: %w", err)
	}
	return a, nil
}

// ready reports whether the records can be read.
func (s *Sandbox) ready(r *http.Request) (answer, error) {
	if _, err := s.pool.Exec(r.Context(), `select from payment_intents limit 0`); err != nil {
		return answer{}, fmt.Errorf("check the records: %w", err)
	}
	return object(http.StatusOK, struct{}{}), nil
}
