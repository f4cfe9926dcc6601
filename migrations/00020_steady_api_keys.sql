-- +goose Up
-- Promise: what it costs to know an API key does not follow what the planner believed
-- of the keys when it made the plan that a session keeps.

-- Made while there were few keys or none, the plan joined all keys with all merchants:
-- with 50,000 of them that was 40 ms for each request. The offsets keep it two probes.
-- +goose StatementBegin
create or replace function api_keys_by_prefix(prefixes text[])
returns table (
  key_hash         bytea,
  scopes           text[],
  merchant_id      text,
  fee_basis_points int,
  fee_fixed        jsonb,
  has_webhook      boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select k.key_hash,
         k.scopes,
         m.merchant_id,
         m.fee_basis_points,
         m.fee_fixed,
         m.has_webhook
    from unnest(prefixes) as asked (prefix)
   cross join lateral (
         select key_hash,
                scopes,
                merchant_id
           from public.api_keys
          where prefix = asked.prefix
            and revoked_at is null
            and (expires_at is null or expires_at > clock_timestamp())
         offset 0) k
   cross join lateral (
         select merchant_id,
                fee_basis_points,
                fee_fixed,
                webhook_url is not null as has_webhook
           from public.merchants
          where merchant_id = k.merchant_id
         offset 0) m;
end
$$;
-- +goose StatementEnd
