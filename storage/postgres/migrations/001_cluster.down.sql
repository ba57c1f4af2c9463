drop function if exists {{schema}}.{{name "heartbeat_1"}}; -- of earlier programs
drop function if exists {{schema}}.{{name "heartbeat_2"}};
drop table {{lock}};
drop table {{command}};
drop table {{counter}};
drop table {{event}};
drop table {{fence}};
drop table {{unit}};
drop table {{lease}};
drop table {{term}};
drop table {{advert}};
drop table {{node}};
