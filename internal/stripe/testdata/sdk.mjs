// Runs the script of TestSDK by Stripe's SDK for Node: node sdk.mjs ORIGIN
import Stripe from 'stripe';

const origin = new URL(process.argv[2]);
const stripe = new Stripe('sk_test_1', {
  host: origin.hostname, port: origin.port, protocol: 'http', maxNetworkRetries: 0, telemetry: false,
});
const intents = stripe.paymentIntents;
const visa = { amount: 1999, currency: 'eur', payment_method: 'pm_card_visa' };

const say = (...words) => console.log(words.join(' '));
async function refused(name, call) {
  try {
    await call;
    say(name, 'was not refused');
  } catch (e) {
    say(name, e.rawType, e.code || '-', e.decline_code || '-', e.param || '-', e.payment_intent?.status || '-');
  }
}

let i = await intents.create({ ...visa, metadata: { charge_id: 'ch_1' } }, { idempotencyKey: 'create' });
say('create', i.status, i.amount, i.currency, i.metadata.charge_id);
await refused('key', intents.create({ ...visa, amount: 2000 }, { idempotencyKey: 'create' }));
i = await intents.confirm(i.id);
say('confirm', i.status, i.amount_received);
let c = await stripe.charges.retrieve(i.latest_charge);
say('charge', c.status, c.paid, c.amount_captured, c.payment_method_details.card.last4);
const r = await stripe.refunds.create({ payment_intent: i.id, amount: 600 });
say('refund', r.status, r.amount, String((await stripe.refunds.retrieve(r.id)).reason));
const l = await stripe.refunds.list({ payment_intent: i.id });
say('refunds', l.object, l.url, l.has_more, l.data.length);
c = await stripe.charges.retrieve(i.latest_charge);
say('charge', c.amount_refunded, c.refunded);

await refused('decline', intents.create({ ...visa, payment_method: 'pm_card_chargeDeclinedInsufficientFunds', confirm: true }));
await refused('amount', intents.create({ ...visa, amount: 49 }));
await refused('currency', intents.create({ ...visa, currency: 'xyz' }));
await refused('method', intents.create({ ...visa, payment_method: 'pm_none' }));
await refused('parameter', intents.create({ ...visa, colour: 'red' }));
await refused('intent', intents.retrieve('pi_none'));

let pages = '';
for await (const listed of intents.list({ limit: 1 })) pages += ` ${listed.status}`;
say('intents' + pages);
const events = await stripe.events.list({ limit: 3 });
say('events', events.has_more, events.data.map((e) => e.type).join(' '));
say('event', (await stripe.events.retrieve(events.data[2].id)).data.object.amount_refunded);
