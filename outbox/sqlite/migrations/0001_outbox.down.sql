DROP TABLE ~outbox_dead;
DROP TABLE ~outbox_parked;
DROP TABLE ~outbox_lane;
DROP TABLE ~outbox_cursor;
DROP TABLE ~outbox_subscription;
DROP TABLE ~outbox_delayed;
DROP TABLE ~outbox;
