-- What PostgreSQL refuses to the roles of the programs, a statement on each line.
select count(*) from ledger_events
select query_to_xml('select * from api_keys', true, true, '')
select * from pg_authid
select * from pg_shadow
select * from pg_user_mapping
copy api_keys to stdout
copy (select 1) to program 'true'
copy (select 1) to '/nowhere'
select pg_read_file('PG_VERSION')
select pg_ls_dir('.')
select lo_import('/nowhere')
select lo_export(1, '/nowhere')
-- This would switch triggers off.
set session_replication_role = replica
alter system set fsync = off
create extension pg_trgm
create schema more
create table more ()
create function more() returns int language sql as 'select 1'
create trigger more before insert on ledger_events execute function refuse_change()
alter table ledger_events disable trigger all
alter table ledger_events disable row level security
create policy more on ledger_events using (true)
drop policy tenant on ledger_events
drop table ledger_events
comment on table ledger_events is 'mine'
create publication more
select pg_create_physical_replication_slot('more')
select pg_switch_wal()
alter role $role login
alter role $role bypassrls
create role more
select refuse_change()
