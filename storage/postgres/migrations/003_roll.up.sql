-- A node that catches up reads the events about members only.
create index {{name "event_roll"}} on {{event}} (seq) where roll;
