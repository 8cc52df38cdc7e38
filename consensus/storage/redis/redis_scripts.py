"""The operations of a store in Redis, in Lua: each script is one transaction, and publishes its own changes.

The first argument is the channel, if the script publishes; names are those of the caller, keys those of Redis.
"""

from ..store import MAX_VALUE

_BELOW = """
local function below(a, b) return #a < #b or (#a == #b and a < b) end -- decimal numbers of any length
"""

# Keys: the value, the set of names, the compacted revisions. Arguments: channel, name, value, number or nothing, series.
_CREATE = (
    _BELOW
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then return 'exists' end
if ARGV[4] ~= '' and below(ARGV[4], redis.call('HGET', KEYS[3], ARGV[5]) or '0') then return 'below' end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 'done'
"""
)

# Keys: the value, the set of names. Arguments: channel, name, value, milliseconds or nothing.
_WRITE = """
local news = ARGV[4] == '' or redis.call('EXISTS', KEYS[1]) == 0
if ARGV[4] == '' then
    redis.call('SET', KEYS[1], ARGV[3])
else
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
end
if news then
    redis.call('ZADD', KEYS[2], 0, ARGV[2])
    redis.call('PUBLISH', ARGV[1], ARGV[2])
end
"""

# Keys: the set of names, the values. Arguments: channel, the names.
_DELETE = """
for i = 2, #KEYS do
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('PUBLISH', ARGV[1], ARGV[i])
end
"""

_VALUE = f"""
local function look(key) -- the value, false, or {{why it is none}}
    local length = redis.pcall('STRLEN', key)
    if type(length) == 'table' then return {{'type'}} end
    if length > {MAX_VALUE} then return {{'size'}} end
    return redis.call('GET', key)
end
"""

# Keys: the value.
_READ = (
    _VALUE
    + """
return look(KEYS[1])
"""
)

# Keys: the set of names. Arguments: what stands before a name in its value's key, first and last name.
_LIST = (
    _VALUE
    + """
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3])) do
    local value = look(ARGV[1] .. name)
    if value then
        found[#found + 1] = name
        found[#found + 1] = value
    else
        redis.call('ZREM', KEYS[1], name)
    end
end
return found
"""
)

# Keys: the compacted revisions. Arguments: channel, series, number.
_COMPACT = (
    _BELOW
    + """
local compacted = redis.call('HGET', KEYS[1], ARGV[2]) or '0'
if not below(compacted, ARGV[3]) then return compacted end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PUBLISH', ARGV[1], ARGV[2] .. '/')
return ARGV[3]
"""
)

# Keys: one that is made and removed. Arguments: channel.
_PROBE = """
redis.call('SET', KEYS[1], 'probe')
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], '')
"""

SCRIPTS = {
    "create": _CREATE,
    "read": _READ,
    "write": _WRITE,
    "delete": _DELETE,
    "list": _LIST,
    "compact": _COMPACT,
    "probe": _PROBE,
}
"""The scripts by the name of the operation."""
