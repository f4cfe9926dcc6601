package ledger

// nextPage reads the next events of the follower $1, $2 at most, and holds the follower's row until
// the transaction ends. It stays below the oldest open transaction, so no event will appear between
// those that it reads. It reads nothing where nothing is new, while another session holds the row,
// and before the repair of a restored dump.
//
// A session that waits for no lock sees the newest row of the follower and an older state of the
// ledger: it may read too few events, never one twice.
const nextPage = `
with follower as materialized (
  select txid,
         position
    from followers f
   where name = $1
     and (select own from numbering)
     and exists (
           select
             from ledger_events e
            where (e.txid, e.position) > (f.txid, f.position)
              and e.txid < pg_snapshot_xmin(pg_current_snapshot()))
     for update skip locked
), page as materialized (
  select e.txid,
         e.position,
         e.stream_id,
         e.version
    from ledger_events e
   where (e.txid, e.position) > ((select txid from follower), (select position from follower))
     and e.txid < pg_snapshot_xmin(pg_current_snapshot())
   order by e.txid, e.position
   limit $2
)`

// moveFollower moves the follower behind its page.
const moveFollower = `, last as (
  select txid,
         position
    from page
   order by txid desc, position desc
   limit 1
)
update followers f
   set txid     = last.txid,
       position = last.position,
       highest  = greatest(f.highest, (select max(position) from page))
  from last
 where f.name = $1`
