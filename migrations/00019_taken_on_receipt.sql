-- +goose Up
-- Promise: who receives a message may insert it as claimed, in the state to which he
-- could have updated it at once. One statement receives for both programs, so both
-- may name the columns; the api offers nobody.
grant insert (status, due_at, attempts, fence, holder) on inbox to payonce_api, payonce_worker;
