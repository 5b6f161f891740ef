"""Answer by arithmetic on the amount; test_client.py has the rules."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("transaction_id", "customer_id", "terminal_id", "amount", "event_time")


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        column = {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()[:, 0]
            for name in NAMES
        }
        parameters = json.loads(request.parameters() or "{}")
        amount = column["amount"]
        if amount[0] == 666:
            time.sleep(0.5)
        bad = amount < 0
        errors = [
            f"amount: {one:g} of {customer.decode()}: must be 0 or more"
            if one < 0
            else ""
            for one, customer in zip(amount, column["customer_id"], strict=True)
        ]
        if bad.all():
            lines = [f"row {row}: {error}" for row, error in enumerate(errors)]
            refusal = pb_utils.TritonError(
                "\n".join(lines), pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse([], error=refusal)
        text = {
            "decision": np.where(bad, "", np.where(amount < 100, "approve", "decline")),
            "reason_codes": [
                (customer + b"|" + terminal).decode()
                for customer, terminal in zip(
                    column["customer_id"], column["terminal_id"], strict=True
                )
            ],
            "error": errors,
            "release": [json.dumps(parameters, sort_keys=True)] * len(amount),
        }
        number = {
            "score": np.where(bad, np.nan, amount / 1000).astype(np.float32),
            "degraded": (column["event_time"] % 128).astype(np.uint32),
        }
        tensors = [
            pb_utils.Tensor(name, np.asarray(values, dtype=object).reshape(-1, 1))
            for name, values in text.items()
        ] + [
            pb_utils.Tensor(name, values.reshape(-1, 1))
            for name, values in number.items()
        ]
        return pb_utils.InferenceResponse(tensors)
