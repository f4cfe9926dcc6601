-- Copies of one charge that the programs have processed: valid rows by construction,
-- whatever the programs write. In each copy the charge's id, order, payment intent, event
-- ids and day are its own.

-- fill_wait waits until every row of the first charge, with so many events, is written.
create procedure fill_wait(events int)
language plpgsql as $$
begin
  while not exists (select from ledger_events where version = events)
     or exists (select from ledger_events e, followers f where f.name = 'balances' and (e.txid, e.position) > (f.txid, f.position))
     or exists (select from inbox where status <> 'done')
  loop
    perform pg_sleep(0.01);
  end loop;
end
$$;

-- The first charge's rows, apart from the tables that grow.
create unlogged table fill_rows (
  number  bigint generated always as identity,
  source  text   not null,
  content json   not null
);

-- What belongs to the first charge alone. The intent is between quotes, since it may be
-- the beginning of another word.
create unlogged table fill_names (
  names text[] not null
);

create procedure fill_begin()
language plpgsql as $$
declare
  source text;
begin
  foreach source in array array['ledger_events', 'ledger_postings', 'idempotency_keys', 'outbox', 'reservations', 'inbox'] loop
    execute format('insert into fill_rows (source, content) select %L, to_json(t) from %I t', source, source);
  end loop;
  insert into fill_names
  select array[f.stream_id, f.data ->> 'order_id',
               (select '"' || (data ->> 'payment_intent') || '"' from ledger_events where type = 'payment.captured.v1'),
               to_char(f.occurred_at, 'YYYY-MM-DD')]
         || (select array_agg(event_id::text order by version) from ledger_events)
    from ledger_events f
   where f.version = 1;
end
$$;

-- fill_copy replaces names in a row, also where a column of bytes has them.
create function fill_copy(content json, froms text[], tos text[]) returns json
immutable language plpgsql as $$
declare
  copy text := content;
begin
  for i in 1 .. cardinality(froms) loop
    copy := replace(replace(copy, froms[i], tos[i]),
                    encode(convert_to(froms[i], 'UTF8'), 'hex'), encode(convert_to(tos[i], 'UTF8'), 'hex'));
  end loop;
  return copy;
end
$$;

-- fill_copies makes some of the copies: as many as retention would leave of six days, so
-- every key, every message of the inbox, and of the outbox the last day. Ids begin with
-- their time, as real ones do; the provider's are random. The inbox comes in a later
-- transaction, as its messages do.
create procedure fill_copies(first int, last int, total int, until timestamptz)
language plpgsql as $$
declare
  names   text[] := (select f.names from fill_names f);
  target  text;
  columns text;
begin
  foreach target in array (select array_agg(source order by source = 'inbox') from (select distinct source from fill_rows) as s) loop
    if target = 'inbox' then
      commit;
    end if;
    -- Identities and the transaction are the database's.
    select string_agg(quote_ident(attname), ', ' order by attnum)
      into columns
      from pg_attribute
     where attrelid = target::regclass
       and attnum > 0
       and not attisdropped
       and attidentity = ''
       and attgenerated = ''
       and atttypid <> 'xid8'::regtype;
    execute format($statement$
      with ids as (
        select n,
               at,
               'ch_' || lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || left(md5(n::text), 20) as id
          from generate_series($1, $2) as n
         cross join lateral (select $4 - interval '6 days' * (1 - n / $3::float8)) as t (at)
      ),
      copies as materialized (
        select n,
               array[id, md5('order' || id)::uuid::text, '"pi_' || left(md5('intent' || id), 24) || '"', to_char(at, 'YYYY-MM-DD')]
               || array(select md5(v || id)::uuid::text from generate_series(1, cardinality($5) - 4) as v) as names
          from ids
         where %1$L <> 'outbox' or at::date = $4::date
      )
      insert into %1$I (%2$s)
      select %2$s
        from copies c
       cross join fill_rows r
       cross join lateral json_populate_record(null::%1$I, fill_copy(r.content, $5, c.names))
       where r.source = %1$L
       order by c.n, r.number
    $statement$, target, columns) using first, last, total, until, names;
  end loop;
end
$$;

-- fill_end mends what belongs to all copies together: balances and stock are sums, and
-- the readers of the ledger and of the outbox have read all of it.
create procedure fill_end(copies int)
language plpgsql as $$
begin
  update account_balances
     set debits  = debits * (copies + 1),
         credits = credits * (copies + 1);
  update stock
     set available = available - copies,
         sold      = sold + copies
   where sold > 0;
  update followers
     set txid     = last.txid,
         position = last.position,
         highest  = (select max(position) from ledger_events)
    from (select txid,
                 position
            from ledger_events
           order by txid desc, position desc
           limit 1) as last
   where name = 'balances';
  drop table fill_rows, fill_names;
end
$$;
