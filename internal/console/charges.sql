-- console.charges
-- A page of the ids of charges, newest first: $1 is the charge before it, or '', $2 how many. An id
-- begins with the time of the charge's request.
select stream_id
  from ledger_events
 where stream_id < coalesce(nullif($1, ''), U&'\+10FFFF')
   and version = 1
 order by stream_id desc
 limit $2
