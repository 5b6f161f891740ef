// Let pass only requests that the contract allows; refuse all others before Triton sees
// them. docs/gateway.md, docs/contract.md. It runs in njs 0.7.9 (Debian 12) and newer.
//
// This is a list of what is allowed: a field, a parameter or a wire type that is not
// named here is refused. So two readers of one message cannot differ on what it says.
import fs from 'fs';
import crypto from 'crypto';

const MAX_ROWS = 32;
const MAX_NAME_BYTES = 128;
const VARINT_BYTES = 10;

// A caller is suspended after this many harmful requests with no more than this time
// between one and the next, until this time after the last one.
const HARMFUL_REQUESTS = 3;
const SUSPENSION_MS = 60000;

const NAME = /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/;
const NAMES = /^(?:\/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$/;

// Wire types of protobuf.
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;

// By datatype: bytes of an element in raw contents (0: each has a length of its own),
// and the number, wire type and width of its field in typed contents.
const DATATYPES = {
    BYTES: { width: 0, field: 8, wire: BYTES },
    FP64: { width: 8, field: 7, wire: FIXED64 },
    INT64: { width: 8, field: 3, wire: VARINT },
};
// By request parameter: the field of InferParameter that holds it.
const PARAMETERS = {
    count: { field: 2, words: 'an int64' },
    deadline_us: { field: 2, words: 'an int64' },
    dry_run: { field: 1, words: 'a bool' },
    store_deadline_ms: { field: 2, words: 'an int64' },
};

const READERS = {
    '/inference.GRPCInferenceService/ModelInfer': readInfer,
    '/inference.GRPCInferenceService/ModelReady': readModel,
    '/inference.GRPCInferenceService/ModelMetadata': readModel,
    '/inference.GRPCInferenceService/ServerLive': readEmpty,
    '/inference.GRPCInferenceService/ServerReady': readEmpty,
    '/inference.GRPCInferenceService/ServerMetadata': readEmpty,
    '/grpc.health.v1.Health/Check': readHealth,
};

// Why a request is refused: `outcome` is the word of logs and metrics.
function Refusal(outcome, words) {
    this.outcome = outcome;
    this.words = words;
}

function refuse(words) {
    throw new Refusal('malformed', words);
}

function harmful(words) {
    throw new Refusal('harmful', words);
}

// Quote a text of the caller so that it fits into a header.
function quoted(text) {
    return '"' + text.slice(0, 64).replace(/[^ !#$&-~]/g, '?') + '"';
}

// Protobuf ---------------------------------------------------------------------------
//
// njs interprets this for each request, and objects and regular expressions cost it
// microseconds each. So positions in the body are plain numbers, and the functions leave
// the bounds of what they have read in these two.
let from = 0;
let to = 0;

// Read a number; it ends before `to`. Over 2^53 it is not exact, and nothing here allows
// so large a one.
function numberAt(body, at, end) {
    const most = Math.min(end, at + VARINT_BYTES);
    let scale = 1;
    let value = 0;
    while (at < most) {
        const byte = body[at++];
        if (byte < 128) {
            to = at;
            return value + byte * scale;
        }
        value += (byte - 128) * scale;
        scale *= 128;
    }
    refuse('a number is cut or too long');
}

// Read a length, and find what it is of: from `from` to `to`.
function partAt(body, at, end) {
    const first = at < end ? body[at] : 128;
    if (first < 128) {
        from = at + 1;
        to = from + first;
    } else {
        const bytes = numberAt(body, at, end);
        from = to;
        to = from + bytes;
    }
    if (to > end) {
        refuse('the message is cut');
    }
}

function textAt(body, at, end, what) {
    partAt(body, at, end);
    if (to - from > MAX_NAME_BYTES) {
        refuse(what + ' has over ' + MAX_NAME_BYTES + ' bytes');
    }
    const text = body.toString('utf8', from, to);
    if (text.indexOf('\ufffd') >= 0) {
        refuse(what + ' is not UTF-8');
    }
    return text;
}

function unknownField(what) {
    refuse(what + ' has an unknown field, or one of the wrong wire type');
}

// Show a name: as it is, or so that it fits into a header.
function shown(name) {
    return NAME.test(name) ? name : quoted(name);
}

// The messages -----------------------------------------------------------------------
//
// A tag is compared as a whole: the field's number times 8, and its wire type. All
// fields that are allowed have a tag of one byte.

function readEmpty(body, at, end) {
    if (at < end) {
        refuse('the message has a field, and this method takes none');
    }
}

function readHealth(body, at, end) {
    let seen = false;
    while (at < end) {
        if (body[at] !== 10 || seen) {
            unknownField('the message');
        }
        seen = true;
        textAt(body, at + 1, end, 'service');
        at = to;
    }
}

function checkModel(name, products) {
    if (!NAME.test(name) || (',' + products + ',').indexOf(',' + name + ',') < 0) {
        throw new Refusal('denied', 'model_name: ' + quoted(name) + ' is not a product');
    }
}

function checkVersion(version) {
    if (version !== '') {
        refuse('model_version: leave it out; the release names it');
    }
}

function readModel(body, at, end, products) {
    let seen = 0;
    let name = '';
    while (at < end) {
        const tag = body[at++];
        if (tag !== 10 && tag !== 18) {
            unknownField('the message');
        }
        if (seen & tag & 24) {
            refuse('a part of the message is there twice');
        }
        seen |= tag & 24;
        const text = textAt(body, at, end, 'a name');
        at = to;
        if (tag === 10) {
            name = text;
        } else {
            checkVersion(text);
        }
    }
    checkModel(name, products);
}

function readInfer(body, at, end, products) {
    // By position: what the inputs are called and of, and where their contents are.
    const found = { names: [], types: [], froms: [], tos: [], rows: 0 };
    const inputNames = {};
    const outputNames = {};
    const parameterNames = {};
    const rawFroms = [];
    const rawTos = [];
    let seen = 0;
    let model = '';
    while (at < end) {
        const tag = body[at++];
        switch (tag) {
        case 42:
            partAt(body, at, end);
            at = to;
            readInput(body, from, to, found, inputNames);
            break;
        case 58:
            partAt(body, at, end);
            at = to;
            rawFroms.push(from);
            rawTos.push(to);
            break;
        case 34:
            partAt(body, at, end);
            at = to;
            readParameter(body, from, to, parameterNames);
            break;
        case 50:
            partAt(body, at, end);
            at = to;
            readOutput(body, from, to, outputNames);
            break;
        case 10:
        case 18:
        case 26:
            if (seen & 1 << (tag >> 3)) {
                refuse('field ' + (tag >> 3) + ' is there twice');
            }
            seen |= 1 << (tag >> 3);
            if (tag === 10) {
                model = textAt(body, at, end, 'model_name');
            } else if (tag === 18) {
                checkVersion(textAt(body, at, end, 'model_version'));
            } else {
                textAt(body, at, end, 'id');
            }
            at = to;
            break;
        default:
            unknownField('the message');
        }
    }
    checkModel(model, products);
    checkInputs(body, found, rawFroms, rawTos);
}

function readParameter(body, at, end, names) {
    let name = null;
    let valueFrom = -1;
    let valueTo = -1;
    while (at < end) {
        const tag = body[at++];
        if (tag === 10 && name === null) {
            name = textAt(body, at, end, 'a parameter');
        } else if (tag === 18 && valueFrom < 0) {
            partAt(body, at, end);
            valueFrom = from;
            valueTo = to;
        } else {
            unknownField('parameters');
        }
        at = to;
    }
    if (name === null || !PARAMETERS.hasOwnProperty(name)) {
        refuse('parameter ' + quoted(name || '') + ' is not known');
    }
    const known = PARAMETERS[name];
    once(names, name, 'parameter ');
    if (valueFrom < 0 || valueFrom === valueTo
        || body[valueFrom] !== known.field * 8) {
        refuse('parameter ' + name + ' is not ' + known.words);
    }
    numberAt(body, valueFrom + 1, valueTo);
    if (to < valueTo) {
        refuse('parameter ' + name + ' is not ' + known.words);
    }
}

// A sign before each name keeps names such as __proto__ apart from what objects have.
function once(names, name, kind) {
    const key = '=' + name;
    if (names[key]) {
        refuse(kind + shown(name) + ' is there twice');
    }
    names[key] = true;
}

function readInput(body, at, end, found, names) {
    let name = '';
    let datatype = '';
    let dims = 0;
    let rows = 0;
    let columns = 0;
    let contentsFrom = -1;
    let contentsTo = -1;
    let parameters = false;
    let seen = 0;
    while (at < end) {
        const tag = body[at++];
        if (tag === 10 || tag === 18 || tag === 42) {
            if (seen & 1 << (tag >> 3)) {
                refuse('a part of inputs is there twice');
            }
            seen |= 1 << (tag >> 3);
        }
        switch (tag) {
        case 10:
            name = textAt(body, at, end, 'the name of an input');
            break;
        case 18:
            datatype = textAt(body, at, end, 'datatype');
            break;
        case 24:
            columns = numberAt(body, at, end);
            if (dims++ === 0) {
                rows = columns;
            }
            break;
        case 26: {
            partAt(body, at, end);
            const packedTo = to;
            let next = from;
            while (next < packedTo && dims < 3) {
                columns = numberAt(body, next, packedTo);
                next = to;
                if (dims++ === 0) {
                    rows = columns;
                }
            }
            to = packedTo;
            break;
        }
        case 34:
            partAt(body, at, end);
            parameters = true;
            break;
        case 42:
            partAt(body, at, end);
            contentsFrom = from;
            contentsTo = to;
            break;
        default:
            unknownField('inputs');
        }
        at = to;
    }
    if (parameters) {
        harmful('input ' + shown(name) + ' has parameters; none are taken');
    }
    once(names, name, 'input ');
    if (!DATATYPES.hasOwnProperty(datatype)) {
        refuse('input ' + shown(name) + ': datatype ' + quoted(datatype)
               + ' is not BYTES, FP64 or INT64');
    }
    if (dims !== 2 || columns !== 1 || rows < 1 || rows > MAX_ROWS) {
        refuse('input ' + shown(name) + ': shape is not [N, 1] with N from 1 to '
               + MAX_ROWS);
    }
    if (found.rows === 0) {
        found.rows = rows;
    } else if (found.rows !== rows) {
        refuse('input ' + shown(name) + ' has ' + rows + ' rows, and others have '
               + found.rows);
    }
    found.names.push(name);
    found.types.push(DATATYPES[datatype]);
    found.froms.push(contentsFrom);
    found.tos.push(contentsTo);
}

function readOutput(body, at, end, names) {
    let name = null;
    let parameters = false;
    while (at < end) {
        const tag = body[at++];
        if (tag === 10 && name === null) {
            name = textAt(body, at, end, 'the name of an output');
        } else if (tag === 18) {
            partAt(body, at, end);
            parameters = true;
        } else {
            unknownField('outputs');
        }
        at = to;
    }
    if (parameters) {
        harmful('output ' + shown(name || '') + ' has parameters; none are taken');
    }
    if (name === null || !NAME.test(name)) {
        refuse('an output is called ' + quoted(name || ''));
    }
    once(names, name, 'output ');
}

// Inputs have proper names, and as many elements as their shape says.
function checkInputs(body, found, rawFroms, rawTos) {
    const names = found.names;
    const count = names.length;
    if (count === 0) {
        refuse('there are no inputs');
    }
    if (!NAMES.test('/' + names.join('/'))) {
        for (let i = 0; i < count; i++) {
            if (!NAME.test(names[i])) {
                refuse('an input is called ' + quoted(names[i]));
            }
        }
    }
    const raw = rawFroms.length;
    if (raw && raw !== count) {
        refuse(raw + ' raw_input_contents for ' + count + ' inputs');
    }
    for (let i = 0; i < count; i++) {
        const typedFrom = found.froms[i];
        if (raw && typedFrom >= 0) {
            refuse('input ' + names[i] + ' has raw and typed contents');
        }
        if (!raw && typedFrom < 0) {
            refuse('input ' + names[i] + ' has no contents');
        }
        const elements = raw ? countRaw(body, rawFroms[i], rawTos[i], found.types[i])
            : countTyped(body, typedFrom, found.tos[i], found.types[i], names[i]);
        if (elements !== found.rows) {
            refuse('input ' + names[i]
                   + ' has not as many elements as its shape says');
        }
    }
}

function countRaw(body, at, end, type) {
    if (type.width) {
        return (end - at) / type.width;
    }
    let count = 0;
    while (at < end && count <= MAX_ROWS) {
        if (at + 4 > end) {
            refuse('the message is cut');
        }
        at += 4 + body.readUInt32LE(at);
        count++;
    }
    if (at > end) {
        refuse('the message is cut');
    }
    return count;
}

function countTyped(body, at, end, type, name) {
    const one = type.field * 8 + type.wire;
    const packed = type.field * 8 + BYTES;
    let count = 0;
    while (at < end && count <= MAX_ROWS) {
        const tag = body[at++];
        if (tag === one) {
            at = stepOver(body, at, end, type.wire);
            count++;
        } else if (tag === packed) {
            partAt(body, at, end);
            const packedTo = to;
            let next = from;
            while (next < packedTo && count <= MAX_ROWS) {
                next = stepOver(body, next, packedTo, type.wire);
                count++;
            }
            at = packedTo;
        } else {
            refuse('input ' + name + ' has contents of another type');
        }
    }
    return count;
}

// Step over a number or text: the position after it.
function stepOver(body, at, end, wire) {
    if (wire === VARINT) {
        numberAt(body, at, end);
        return to;
    }
    if (wire === BYTES) {
        partAt(body, at, end);
        return to;
    }
    if (at + 8 > end) {
        refuse('the message is cut');
    }
    return at + 8;
}

// Suspension -------------------------------------------------------------------------

// A file of each caller who sent something harmful, a line for each such request, and one
// that is as old as the latest of them all. All processes of nginx see them. A file
// counts for nothing once it is older than the suspension.
const LATEST = '/latest';

function recordOf(r) {
    const name = crypto.createHash('sha256').update(r.variables.gateway_caller);
    return r.variables.gateway_suspensions + '/' + name.digest('hex');
}

// Whether the last harmful request is recent.
function isRecent(record) {
    const found = fs.statSync(record, { throwIfNoEntry: false });
    return found !== undefined && Date.now() - found.mtimeMs < SUSPENSION_MS;
}

function isSuspended(r) {
    try {
        // Mostly nobody is, and this is the one look at the folder.
        if (!isRecent(r.variables.gateway_suspensions + LATEST)) {
            return false;
        }
        const record = recordOf(r);
        return isRecent(record)
            && fs.readFileSync(record, 'utf8').split('\n').length > HARMFUL_REQUESTS;
    } catch (problem) {
        // The record cannot be read. The request is inspected like any other; what keeps
        // a record from being written is logged then.
        return false;
    }
}

function note(r) {
    const record = recordOf(r);
    const line = new Date().toISOString() + ' ' + r.variables.request_id + '\n';
    (isRecent(record) ? fs.appendFileSync : fs.writeFileSync)(record, line);
    fs.writeFileSync(r.variables.gateway_suspensions + LATEST, line);
}

// The answer -------------------------------------------------------------------------

// nginx.conf answers these two with its location @refused.
const INVALID_ARGUMENT = 530;
const PERMISSION_DENIED = 531;

function answer(r, refusal) {
    const denied = refusal.outcome === 'denied' || refusal.outcome === 'suspended';
    r.variables.gateway_refused = refusal.outcome;
    r.variables.gateway_why = refusal.words;
    r.return(denied ? PERMISSION_DENIED : INVALID_ARGUMENT);
}

function read(r) {
    const body = r.requestBuffer;
    if (!body || body.length < 5) {
        refuse('there is no message');
    }
    if (body[0] !== 0) {
        refuse('the message is compressed; send it as it is');
    }
    if (body.readUInt32BE(1) !== body.length - 5) {
        refuse('the body is not one message of gRPC');
    }
    const reader = READERS[r.uri];
    reader(body, 5, body.length, r.variables.gateway_products);
}

function inspect(r) {
    try {
        if (isSuspended(r)) {
            throw new Refusal('suspended', 'suspended for a minute after '
                              + HARMFUL_REQUESTS + ' harmful requests');
        }
        read(r);
    } catch (error) {
        if (!(error instanceof Refusal)) {
            r.error('inspection: ' + error);
            error = new Refusal('malformed', 'not a request');
        }
        if (error.outcome === 'harmful') {
            try {
                note(r);
            } catch (problem) {
                r.error('inspection: no record of a harmful request: ' + problem);
            }
        }
        answer(r, error);
        return;
    }
    r.internalRedirect('@triton');
}

export default { inspect };
