-- What each constraint of the schema refuses: the last statement of a block. The others are
-- accepted, and go with it. The functions write rows as a careless program would.

create function event(stream text, version int, type text, data jsonb default '{}', merchant text default 'acme', id text default null)
returns void language sql as $$
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (md5(coalesce(id, stream || ' ' || version))::uuid, stream, version, type, merchant, data, '{}', now())
$$;

create function posting(leg int, debit text, credit text, amount int)
returns void language sql as $$
insert into ledger_postings values ('ch_1', 1, leg, 'acme', debit, credit, amount, 'EUR')
$$;

create function message(id text, metadata jsonb)
returns void language sql as $$
insert into outbox (topic, message_id, payload, metadata) values ('t', id, '', metadata)
$$;

create function received(id text, key text, status text)
returns void language sql as $$
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first)
values ('r', id, key, 't', '', '{}', '', status, status = 'running')
$$;

create function answer(key text, status int)
returns void language sql as $$
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', 'POST /v1/charges', key, '', status, '', now())
$$;

-- merchants_pkey: a merchant registers once
insert into merchants (merchant_id) values ('g_1');
insert into merchants (merchant_id) values ('g_1');

-- merchants_merchant_id_check: a merchant's id is a word
insert into merchants (merchant_id) values ('Acme Ltd.');

-- merchants_fee_basis_points_check: a fee is not above all of it
insert into merchants (merchant_id, fee_basis_points) values ('g_1', 10001);

-- merchants_fee_basis_points_check: a fee is not below nothing
insert into merchants (merchant_id, fee_basis_points) values ('g_1', -1);

-- merchants_fee_fixed_check: fixed fees are by currency
insert into merchants (merchant_id, fee_fixed) values ('g_1', '[30]');

-- api_keys_pkey: a key opens one account
insert into merchants (merchant_id) values ('g_2');
insert into merchants (merchant_id) values ('g_3');
insert into api_keys (key_hash, prefix, merchant_id, scopes) values (sha256('k'), 'sk', 'g_2', '{charges:read}');
insert into api_keys (key_hash, prefix, merchant_id, scopes) values (sha256('k'), 'sk', 'g_3', '{charges:read}');

-- api_keys_key_hash_check: a raw key is not kept
insert into merchants (merchant_id) values ('g_4');
insert into api_keys (key_hash, prefix, merchant_id, scopes) values ('sk_live_raw', 'sk', 'g_4', '{charges:read}');

-- api_keys_merchant_id_fkey: a key has a merchant
insert into api_keys (key_hash, prefix, merchant_id, scopes) values (sha256('k'), 'sk', 'nobody', '{charges:read}');

-- api_keys_known_scopes: a key is for something
insert into merchants (merchant_id) values ('g_5');
insert into api_keys (key_hash, prefix, merchant_id, scopes, expires_at) values (sha256('k'), 'sk', 'g_5', '{}', clock_timestamp() + interval '1 day');

-- api_keys_known_scopes: for nothing unheard of
insert into merchants (merchant_id) values ('g_5');
insert into api_keys (key_hash, prefix, merchant_id, scopes, expires_at) values (sha256('k'), 'sk', 'g_5', '{charges:read,charges:delete}', clock_timestamp() + interval '1 day');

-- api_keys_known_scopes: and for nothing unsaid
insert into merchants (merchant_id) values ('g_5');
insert into api_keys (key_hash, prefix, merchant_id, scopes, expires_at) values (sha256('k'), 'sk', 'g_5', '{charges:read,null}', clock_timestamp() + interval '1 day');

-- api_keys_expire_after_their_birth: a key is not born expired
insert into merchants (merchant_id) values ('g_5');
insert into api_keys (key_hash, prefix, merchant_id, scopes, expires_at) values (sha256('k'), 'sk', 'g_5', '{charges:read}', clock_timestamp() + interval '-1 second');

-- ledger_events_event_once: an event happens once, whatever its version
select event('ch_1', 1, 'a');
select event('ch_1', 2, 'a', id => 'ch_1 1');

-- ledger_events_version_once: a version of a stream has one event
select event('ch_1', 1, 'a');
select event('ch_2', 1, 'a');
select event('ch_1', 1, 'a', id => 'another');

-- ledger_events_one_beginning: a stream has one beginning, whichever merchant begins it
select event('ch_1', 1, 'a');
select event('ch_1', 1, 'a', id => 'another', merchant => 'globex');

-- ledger_events_previous_exists: a stream does not begin in its middle
select event('ch_1', 2, 'a');

-- ledger_events_previous_exists: a stream has no gap
select event('ch_1', 1, 'a');
select event('ch_1', 2, 'b');
select event('ch_1', 4, 'd');

-- ledger_events_previous_exists: an event does not follow another stream's
select event('ch_1', 1, 'a');
select event('ch_2', 1, 'a');
select event('ch_2', 2, 'b');
select event('ch_1', 3, 'c');

-- ledger_events_previous_exists: an event does not follow another merchant's
select event('ch_1', 1, 'a');
select event('ch_1', 2, 'b', merchant => 'globex');

-- ledger_events_one_capture: a charge is captured once
select event('ch_1', 1, 'payment.captured.v1', '{"provider":"stripe","payment_intent":"pi_1"}');
select event('ch_1', 2, 'payment.captured.v1', '{"provider":"stripe","payment_intent":"pi_2"}');

-- ledger_events_one_capture: also by a later version of the event
select event('ch_1', 1, 'payment.captured.v1', '{"provider":"stripe","payment_intent":"pi_1"}');
select event('ch_1', 2, 'payment.captured.v2', '{"provider":"stripe","payment_intent":"pi_2"}');

-- ledger_events_one_outcome: a charge that succeeded does not fail
select event('ch_1', 1, 'charge.succeeded.v1');
select event('ch_2', 1, 'charge.failed.v1');
select event('ch_1', 2, 'charge.failed.v1');

-- ledger_events_one_outcome: a charge that failed does not succeed
select event('ch_1', 1, 'charge.failed.v1');
select event('ch_1', 2, 'charge.succeeded.v2');

-- ledger_events_by_payment_intent: a payment intent is one charge's
select event('ch_1', 1, 'payment.started.v1', '{"provider":"stripe","payment_intent":"pi_1"}');
select event('ch_2', 1, 'payment.started.v1', '{"provider":"stripe","payment_intent":"pi_1"}');

-- ledger_events_one_capture_per_intent: one payment intent pays for one charge
select event('ch_1', 1, 'payment.captured.v1', '{"provider":"stripe","payment_intent":"pi_1"}');
select event('ch_2', 1, 'payment.captured.v1', '{"provider":"stripe","payment_intent":"pi_1"}');

-- ledger_events_one_refund_outcome: a refund that succeeded does not fail
select event('ch_1', 1, 'refund.succeeded.v1', '{"refund_id":"re_1"}');
select event('ch_1', 2, 'refund.failed.v1', '{"refund_id":"re_2"}');
select event('ch_2', 1, 'refund.failed.v1', '{"refund_id":"re_1"}');
select event('ch_1', 3, 'refund.failed.v1', '{"refund_id":"re_1"}');

-- ledger_events_one_refund_reversal: a refund is reversed once
select event('ch_1', 1, 'refund.succeeded.v1', '{"refund_id":"re_1"}');
select event('ch_1', 2, 'refund.reversed.v1', '{"refund_id":"re_1"}');
select event('ch_1', 3, 'refund.reversed.v1', '{"refund_id":"re_1"}');

-- ledger_events_one_refund_outcome: a refund that was observed does not succeed as well
select event('ch_1', 1, 'refund.observed.v1', '{"refund_id":"re_1"}');
select event('ch_1', 2, 'refund.succeeded.v1', '{"refund_id":"re_1"}');

-- ledger_events_one_dispute: a dispute is opened once, in whichever charge
select event('ch_1', 1, 'charge.dispute_opened.v1', '{"dispute_id":"du_1"}');
select event('ch_1', 2, 'charge.dispute_closed.v2', '{"dispute_id":"du_1"}');
select event('ch_1', 3, 'charge.dispute_closed.v2', '{"dispute_id":"du_1"}');
select event('ch_2', 1, 'charge.dispute_opened.v2', '{"dispute_id":"du_1"}');

-- ledger_events_one_dispute: a movement is recorded once, in whichever direction
select event('ch_1', 1, 'charge.dispute_opened.v1', '{"dispute_id":"du_1"}');
select event('ch_1', 2, 'charge.dispute_withdrawn.v2', '{"dispute_id":"du_1","transaction":"txn_1"}');
select event('ch_1', 3, 'charge.dispute_withdrawn.v2', '{"dispute_id":"du_1","transaction":"txn_2"}');
select event('ch_1', 4, 'charge.dispute_reinstated.v2', '{"dispute_id":"du_1","transaction":"txn_1"}');

-- ledger_events_one_refund_per_provider_refund: a refund of the provider's that was booked is not observed
select event('ch_1', 1, 'refund.succeeded.v1', '{"refund_id":"re_1","provider":"stripe","provider_refund":"re_9"}');
select event('ch_1', 2, 'refund.observed.v1', '{"refund_id":"re_9","provider":"stripe","provider_refund":"re_9"}');

-- ledger_events_one_refund_per_provider_refund: one refund of the provider's is booked once
select event('ch_1', 1, 'refund.succeeded.v1', '{"refund_id":"re_1","provider":"stripe","provider_refund":"re_9"}');
select event('ch_1', 2, 'refund.succeeded.v1', '{"refund_id":"re_2","provider":"stripe","provider_refund":"re_9"}');

-- ledger_events_pkey: a place in the order is taken once
insert into ledger_events overriding system value values (-1, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 'm', '{}', '{}', now());
insert into ledger_events overriding system value values (-1, default, md5('e2')::uuid, 'ch_1', 2, default, 'a', 'm', '{}', '{}', now());

-- ledger_events_previous_exists: versions count from one
select event('ch_1', 0, 'a');

-- ledger_events_occurred_at_check: an event occurred at a time that can be shown
insert into ledger_events overriding system value values (default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 'm', '{}', '{}', 'infinity');

-- ledger_events_data_check: an event is an object
select event('ch_1', 1, 'a', '[]');

-- ledger_events_data_check: a program can hold an event
select event('ch_1', 1, 'a', jsonb_build_object('x', repeat('x', 1048576)));

-- ledger_events_metadata_check: the cause of an event is an object
insert into ledger_events overriding system value values (default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 'm', '{}', 'null', now());

-- ledger_postings_leg_once: a leg is posted once
select posting(1, 'a:EUR', 'b:EUR', 5);
select posting(2, 'a:EUR', 'b:EUR', 5);
select posting(1, 'a:EUR', 'b:EUR', 5);

-- ledger_postings_leg_check: legs count from one
select posting(0, 'a:EUR', 'b:EUR', 5);

-- ledger_postings_amount_check: a posting moves an amount
select posting(1, 'a:EUR', 'b:EUR', 0);

-- ledger_postings_two_accounts: a posting is between two accounts
select posting(1, 'a:EUR', 'a:EUR', 5);

-- ledger_postings_one_currency: the debit is in the posting's currency
select posting(1, 'a:USD', 'b:EUR', 5);

-- ledger_postings_one_currency: the credit is in the posting's currency
select posting(1, 'a:EUR', 'b:USD', 5);

-- outbox_message_id_check: a message has an id
select message('', '{}');

-- outbox_message_id_check: an id has at most 255 characters
select message(repeat('x', 255), '{}');
select message(repeat('x', 256), '{}');

-- outbox_metadata_check: metadata is an object
select message('m', '"x"');

-- outbox_metadata_check: a reader can hold a message
select message('m', jsonb_build_object('x', repeat('x', 1048576)));

-- outbox_pkey: a place in the order is taken once
insert into outbox (topic, id, message_id, payload, metadata) overriding system value values ('t', 7, 'm1', '', '{}');
insert into outbox (topic, id, message_id, payload, metadata) overriding system value values ('t', 7, 'm2', '', '{}');

-- outbox_topics_pkey: a topic has one reader
insert into outbox_topics values ('t'), ('u');
insert into outbox_topics values ('t');

-- inbox_message_once: a message is received once
select received('m1', 'k', 'pending');
select received('m1', 'k', 'pending');

-- inbox_message_once: also when it is done
select received('m1', 'k', 'pending');
update inbox set status = 'done', done_fence = 0 where message_id = 'm1';
select received('m1', 'l', 'pending');

-- inbox_one_first_per_key: one message of a key is first
select received('m1', 'k', 'running');
select received('m2', 'k', 'pending');
select received('m3', 'l', 'running');
update inbox set first = true where message_id = 'm2';

-- inbox_one_first_per_key: so one message of a key runs
select received('m1', 'k', 'running');
select received('m2', 'k', 'running');

-- inbox_one_first_per_key: and none behind a dead letter that blocks its key
select received('m1', 'k', 'dead');
update inbox set first = true where message_id = 'm1';
select received('m2', 'k', 'running');

-- inbox_running_is_first: a message behind another one does not run
select received('m1', 'k', 'pending');
update inbox set status = 'running' where message_id = 'm1';

-- inbox_first_is_open: a message that is done is not first
select received('m1', 'k', 'running');
update inbox set status = 'done', done_fence = 0 where message_id = 'm1';

-- inbox_first_is_open: nor is one that was discarded
select received('m1', 'k', 'running');
update inbox set status = 'discarded', decided_by = 'ada', decided_at = now() where message_id = 'm1';

-- inbox_done_by_holder: a holder that was taken over does not finish
select received('m1', 'k', 'running');
update inbox set fence = 2 where message_id = 'm1';
update inbox set status = 'done', first = false, done_fence = 1 where message_id = 'm1';

-- inbox_done_by_holder: what is finished is not claimed again
select received('m1', 'k', 'running');
update inbox set status = 'done', first = false, done_fence = 0 where message_id = 'm1';
update inbox set status = 'running', first = true, fence = fence + 1 where message_id = 'm1';

-- inbox_done_by_holder: an end that finds no message of its own is refused
select false::inbox_ended;

-- inbox_done_has_fence: no message is finished without a fence
select received('m1', 'k', 'running');
update inbox set status = 'done', first = false where message_id = 'm1';

-- inbox_status_check: a message is in a known state
select received('m1', 'k', 'lost');

-- inbox_discarded_has_actor: no message is discarded without a name
select received('m1', 'k', 'discarded');

-- inbox_decision_has_actor: a name is not empty
select received('m1', 'k', 'dead');
update inbox set decided_by = '', decided_at = now();

-- inbox_decision_has_actor: a decision has its time
select received('m1', 'k', 'dead');
update inbox set decided_by = 'ada';

-- inbox_decision_has_actor: a time has its decision
select received('m1', 'k', 'dead');
update inbox set decided_at = now();

-- inbox_pkey: a row of the inbox has its number alone
insert into inbox (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash) overriding system value values (-1, 'r', 'm1', 'k', 't', '', '{}', '');
insert into inbox (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash) overriding system value values (-1, 'r', 'm2', 'k', 't', '', '{}', '');

-- inbox_holders_pkey: a processor is registered once
insert into inbox_holders values ('r', 'h', now()), ('r', 'i', now()), ('s', 'h', now());
insert into inbox_holders values ('r', 'h', now());

-- idempotency_keys_once: a key has one answer
select answer('k', 202);
select answer('l', 202);
select answer('k', 202);

-- idempotency_keys_status_code_check: what the server got wrong is no answer
select answer('k', 499);
select answer('l', 500);

-- idempotency_keys_status_code_check: nor is what only informs
select answer('k', 103);

-- stock_pkey: an article is kept once
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 5, 5, 0);

-- stock_merchant_id_fkey: stock has a merchant
insert into stock (merchant_id, sku, supplied, available, reserved) values ('nobody', 'mug', 3, 3, 0);

-- stock_available_not_negative: nothing is reserved that is not there
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
update stock set available = available - 4, reserved = reserved + 4 where merchant_id = 'g_s';

-- stock_reserved_not_negative: nothing is released that was not held
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
update stock set available = available + 1, reserved = reserved - 1 where merchant_id = 'g_s';

-- stock_adds_up: nothing is made up
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
update stock set available = available + 1 where merchant_id = 'g_s';

-- reservations_once: a charge holds an article once
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
insert into reservations values ('ch_1', 'g_s', 'mug', 2, 'open');
insert into reservations values ('ch_1', 'g_s', 'mug', 1, 'open');

-- reservations_known_sku: nothing is held of what is not kept
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
insert into reservations values ('ch_1', 'g_s', 'plate', 1, 'open');

-- reservations_quantity_check: nothing is not held
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
insert into reservations values ('ch_1', 'g_s', 'mug', 0, 'open');

-- reservations_status_check: a reservation is in a known state
insert into merchants (merchant_id) values ('g_s');
insert into stock (merchant_id, sku, supplied, available, reserved) values ('g_s', 'mug', 3, 3, 0);
insert into reservations values ('ch_1', 'g_s', 'mug', 1, 'lost');

-- webhook_secrets_pkey: one of two replacements of a secret wins
insert into merchants (merchant_id) values ('g_1');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 1, 'whsec_', sha256('s'), 'cli:me', null);
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 1, 'whsec_', sha256('s'), 'cli:me', null);

-- webhook_secrets_merchant_id_fkey: a secret has a merchant
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('nobody', 1, 'whsec_', sha256('s'), 'cli:me', null);

-- webhook_secrets_generation_check: secrets are counted
insert into merchants (merchant_id) values ('g_1');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 0, 'whsec_', sha256('s'), 'cli:me', null);

-- webhook_secrets_secret_hash_check: a fingerprint is one
insert into merchants (merchant_id) values ('g_1');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 1, 'whsec_', 'whsec_', 'cli:me', null);

-- webhook_secrets_created_by_check: a secret names who made it
insert into merchants (merchant_id) values ('g_1');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 1, 'whsec_', sha256('s'), '', null);

-- webhook_secrets_end_before_they_are_forgotten: what signs is not forgotten
insert into merchants (merchant_id) values ('g_1');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_1', 1, null, sha256('s'), 'cli:me', null);

-- merchants_webhook_secret_exists: the first secret is there
insert into merchants (merchant_id, webhook_url) values ('g_1', 'https://shop.example');

-- merchants_webhook_secret_exists: and is the merchant's own
insert into merchants (merchant_id) values ('g_2');
insert into webhook_secrets (merchant_id, generation, secret, secret_hash, created_by, ends_at) values ('g_2', 1, 'whsec_', sha256('s'), 'cli:me', null);
insert into merchants (merchant_id, webhook_url) values ('g_1', 'https://shop.example');

-- pauses_pkey: a receiver is paused or not
insert into pauses (what, paused) values ('fulfillment', true);
insert into pauses (what, paused) values ('fulfillment', false);

-- pauses_what_check: a pause of a merchant names it
insert into pauses (what, paused) values ('merchant', true);

-- provider_account_pkey: there is one account
insert into provider_account (account, live) values ('acct_1', false);
insert into provider_account (account, live) values ('acct_2', false);

-- provider_account_only_one_check: nor is there another beside it
insert into provider_account (only_one, account, live) values (false, 'acct_1', false);

-- provider_account_account_check: it has a name
insert into provider_account (account, live) values ('', false);

-- audit_results_once: a scope has one result
insert into audit_results (scope, checked, violated) values ('tables', 2, 1);
insert into audit_results (scope, checked, violated) values ('tables', 3, 0);

-- audit_results_violated_of_checked: more violations than cases
insert into audit_results (scope, checked, violated) values ('tables', 2, 3);

-- audit_results_violated_of_checked: fewer violations than none
insert into audit_results (scope, checked, violated) values ('tables', 2, -1);

-- audit_progress_pkey: one audit follows the ledger
insert into audit_progress default values;

-- audit_progress_only_one_check: nor is there another beside it
insert into audit_progress (only_one) values (false);

-- restore_mark_pkey: there is one mark
insert into restore_mark (written_in) values ('3');

-- restore_mark_only_one_check: no second mark beside it
insert into restore_mark (only_one, written_in) values (false, '3');

-- followers_pkey: a follower is at one place
insert into followers (name) values ('balances');

-- held_orders_one_charge: an order is held by one charge
insert into held_orders values ('acme', 'order 1', 'ch_1');
insert into held_orders values ('acme', 'order 1', 'ch_2');

-- account_balances_once: an account has one balance
insert into account_balances values ('acme', 'a:EUR', 1, 0);
insert into account_balances values ('acme', 'a:EUR', 1, 0);

-- operator_actions_pkey: each action has its own number
insert into operator_actions (action_id, actor, login, action, subject, after) overriding system value values (1, 'me', 'me', 'a', 's', '{}');
insert into operator_actions (action_id, actor, login, action, subject, after) overriding system value values (1, 'me', 'me', 'a', 's', '{}');

-- operator_actions_one_supply: a supply with an id is made once
insert into operator_actions (actor, login, action, subject, merchant_id, after) values ('me', 'me', 'stock supply', 'mug', 'g_s', '{"id": "1"}');
insert into operator_actions (actor, login, action, subject, merchant_id, after) values ('me', 'me', 'stock supply', 'mug', 'g_s', '{"id": "1"}');

-- operator_actions_actor_check: an action has an actor
insert into operator_actions (actor, login, action, subject, after) values ('', 'me', 'a', 's', '{}');
