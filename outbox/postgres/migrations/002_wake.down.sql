drop function {{function "outbox_wake"}}();
